"""The formulas of attention, against values computed by hand and against torch."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from vit.attention import (
    attention_weights,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
    simplified_attention,
)
from vit.attention.functional import mask_logits, softmax_mask

B, H, N, M, D, E = 2, 3, 5, 7, 11, 13
EXACT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture
def qkv():
    q, k, v = torch.randn(B, H, N, D), torch.randn(B, H, M, D), torch.randn(B, H, M, E)
    return q.double(), k.double(), v.double()


@pytest.mark.parametrize(("length", "scale"), [(2, None), (1, 1.0)])
def test_weights_and_output_are_those_computed_by_hand(length, scale):
    # Products of the query (2 ln 3, 0, 0, 0) with the keys: 0 and 2 ln 3. Times 4 ** -0.5: 0 and ln 3.
    # A given scale takes the place of 4 ** -0.5.
    # Exponentials: 1 and 3. So the weights are 1/4 and 3/4, and the output is (4 + 3 * 8) / 4.
    q = torch.tensor([length * math.log(3), 0, 0, 0]).reshape(1, 1, 1, 4)
    k = torch.tensor([[0.0, 1, 1, 1], [1, 0, 0, 0]]).reshape(1, 1, 2, 4)
    v = torch.tensor([4.0, 8.0]).reshape(1, 1, 2, 1)
    output, weights = scaled_dot_product_attention(q, k, v, scale=scale)
    assert_close(weights, torch.tensor([[[[0.25, 0.75]]]]))
    assert_close(output, torch.tensor([[[[7.0]]]]))


def test_large_products_do_not_overflow():
    q = torch.full((1, 1, 1, 1), 1e4)
    k = torch.tensor([1e4, 1e4, 0.0]).reshape(1, 1, 3, 1)
    assert_close(attention_weights(q, k), torch.tensor([[[[0.5, 0.5, 0.0]]]]))


@pytest.mark.parametrize("scale", [None, 0.3])
def test_output_equals_that_of_torch(qkv, scale):
    output, _ = scaled_dot_product_attention(*qkv, scale=scale)
    assert_close(output, F.scaled_dot_product_attention(*qkv, scale=scale), **EXACT)


def test_output_is_the_mean_of_the_values_under_the_weights_returned(qkv):
    q, k, v = qkv
    output, weights = scaled_dot_product_attention(q, k, v)
    assert_close(weights, attention_weights(q, k), rtol=0, atol=0)
    assert_close(output, weights @ v, **EXACT)


# Simplified attention.


def test_simplified_attention_is_that_computed_by_hand():
    # Products of the tokens (ln 3, 0) and (0, 0): ln(3)^2, 0 and 0; of unit tokens: 1, 0 and 1.
    x = torch.tensor([[[math.log(3), 0.0], [0.0, 0.0]]])
    output, weights = simplified_attention(x)
    to_itself = 3 ** math.log(3) / (3 ** math.log(3) + 1)
    assert_close(weights, torch.tensor([[[to_itself, 1 - to_itself], [0.5, 0.5]]]))
    assert_close(output, torch.tensor([[[to_itself * math.log(3), 0.0], [0.5 * math.log(3), 0.0]]]))

    _, weights = simplified_attention(torch.tensor([[[5.0, 0.0], [0.0, 7.0]]]), similarity="cosine")
    assert_close(weights[0, 0], torch.tensor([math.e, 1.0]) / (math.e + 1))


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_simplified_attention_is_attention_without_projections_and_scale(similarity):
    x = torch.randn(B, N, D, dtype=torch.float64)
    compared = x if similarity == "dot" else x / x.norm(dim=-1, keepdim=True)
    expected, expected_weights = scaled_dot_product_attention(
        compared[:, None], compared[:, None], x[:, None], scale=1.0
    )
    output, weights = simplified_attention(x, similarity)
    assert_close(weights, expected_weights[:, 0], **EXACT)
    assert_close(output, expected[:, 0], **EXACT)


def test_an_unknown_similarity_is_refused():
    with pytest.raises(ValueError, match="unknown similarity 'euclid': choose 'dot' or 'cosine'"):
        simplified_attention(torch.randn(1, 2, 3), similarity="euclid")


def test_tokens_without_a_batch_are_refused():
    with pytest.raises(
        ValueError, match=r"x has shape \(2, 3\), and simplified .* takes \(batch, tokens, channels\): give one"
    ):
        simplified_attention(torch.randn(2, 3))


# Masks.


@pytest.mark.parametrize("shape", [(N, M), (1, M), (B, H, N, M), (B, 1, 1, M), (1, H, N, 1)])
@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_masks_of_every_shape_that_broadcasts_equal_those_of_torch(qkv, shape, kind):
    mask = torch.randn(shape, dtype=torch.float64)
    mask = mask > -0.5 if kind == "boolean" else mask
    expected = F.scaled_dot_product_attention(*qkv, attn_mask=mask.expand(*mask.shape[:-1], M))
    assert_close(scaled_dot_product_attention(*qkv, mask=mask)[0], expected.nan_to_num(0), **EXACT)


def test_causal_attention_gives_future_positions_exactly_zero():
    q, k = torch.randn(2, B, H, M, D)
    weights = attention_weights(q, k, causal=True)
    assert (weights.triu(1) == 0).all()
    assert (weights.tril() > 0).sum() == B * H * M * (M + 1) // 2
    assert_close(weights[:, :, 2, :3], attention_weights(q[:, :, 2:3], k[:, :, :3])[:, :, 0])


@pytest.mark.parametrize("t", range(1, M + 1))
def test_the_last_t_causal_queries_alone_give_the_end_of_the_whole_output(t):
    q, k, v = torch.randn(3, B, H, M, D, dtype=torch.float64)
    whole, weights = scaled_dot_product_attention(q, k, v, causal=True)
    last, last_weights = scaled_dot_product_attention(q[:, :, -t:], k, v, causal=True)
    assert_close(last, whole[:, :, -t:], **EXACT)
    assert_close(last_weights, weights[:, :, -t:], **EXACT)


@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_a_mask_and_causal_combine_to_their_intersection(kind):
    q, k, v = torch.randn(3, B, H, M, D, dtype=torch.float64)
    mask = torch.rand(M, M) > 0.3
    both = mask & torch.ones(M, M, dtype=torch.bool).tril()
    given = mask if kind == "boolean" else torch.zeros(M, M).masked_fill(~mask, -torch.inf)
    expected = scaled_dot_product_attention(q, k, v, mask=both)[0]
    assert_close(scaled_dot_product_attention(q, k, v, mask=given, causal=True)[0], expected, **EXACT)


def test_padding_gets_no_attention():
    q, k, v = torch.randn(3, 2, H, M, D, dtype=torch.float64)
    mask = padding_mask(torch.tensor([3, M]), M)
    assert mask.shape == (2, 1, 1, M)
    output, _ = scaled_dot_product_attention(q, k, v, mask=mask)
    assert_close(output[0], scaled_dot_product_attention(q[:1], k[:1, :, :3], v[:1, :, :3])[0][0], **EXACT)
    assert_close(output[1], scaled_dot_product_attention(q[1:], k[1:], v[1:])[0][0], **EXACT)


@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_a_query_whose_keys_are_all_masked_gets_zeros_and_finite_gradients(qkv, kind):
    q, k, v = (x.requires_grad_() for x in qkv)
    mask = torch.ones(N, M, dtype=torch.bool)
    mask[2] = False
    given = mask if kind == "boolean" else torch.zeros(N, M).masked_fill(~mask, -torch.inf)
    output, weights = scaled_dot_product_attention(q, k, v, mask=given)
    assert (output[:, :, 2] == 0).all()
    assert (weights[:, :, 2] == 0).all()
    others = [0, 1, 3, 4]
    expected, _ = scaled_dot_product_attention(q[:, :, others], k, v)
    assert_close(output[:, :, others], expected, **EXACT)
    gradients = torch.autograd.grad(output.square().sum(), (q, k, v))
    assert_close(gradients, torch.autograd.grad(expected.square().sum(), (q, k, v)), **EXACT)


def test_causal_queries_before_the_first_key_get_zeros():
    q, k, v = torch.randn(1, 1, 5, D), torch.randn(1, 1, 2, D), torch.randn(1, 1, 2, D)
    output, _ = scaled_dot_product_attention(q, k, v, causal=True)
    assert (output[:, :, :3] == 0).all()
    assert_close(output[:, :, 3], v[:, :, 0])


def test_the_numbers_of_a_mask_are_added_as_they_are_where_no_softmax_is_taken():
    logits, mask = torch.randn(B, H, N, M), torch.full((N, M), -1e9)
    assert_close(mask_logits(logits, mask), logits + mask, rtol=0, atol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_the_largest_number_of_a_mask_that_a_query_sees_becomes_zero(causal):
    shape, device = (B, H, M, M), torch.device("cpu")
    lowest = torch.finfo(torch.float32).min
    mask = torch.tensor([[0.0] * M, [-1e9] * M, [lowest] * M, [-torch.inf] * M, [-2.0, -1.0, *[-torch.inf] * 5]])
    mask = torch.cat([mask, torch.tensor([[-1e9] * 6 + [5.0], [-1e9] * 6 + [0.0]])])
    expected = mask.clone()
    expected[1:3] = 0.0
    expected[4, :2] = torch.tensor([-1.0, 0.0])
    expected[5] = torch.tensor([0.0] * M if causal else [-1e9] * 6 + [0.0])  # the query before the last key
    expected = expected.masked_fill(~causal_mask(M, M), -torch.inf) if causal else expected
    assert_close(softmax_mask(mask, causal, shape, device), expected, rtol=0, atol=0)


@pytest.mark.parametrize("n", [1, 3, 5, 8])
@pytest.mark.parametrize("m", [1, 5, 7])
def test_the_causal_mask_counts_from_the_end(n, m):
    mask = causal_mask(n, m)
    assert mask.tolist() == [[key - (m - 1) <= query - (n - 1) for key in range(m)] for query in range(n)]


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        ((2, 3, 5), (2, 3, 5), (2, 3, 5), "3, 3 and 3 axes: attention takes 4"),
        ((1, 1, 5, 4), (1, 1, 5, 3), (1, 1, 5, 3), "queries have 4 channels and keys 3"),
        ((1, 1, 5, 4), (1, 1, 6, 4), (1, 1, 7, 4), "there are 6 keys and 7 values"),
        (
            (1, 4, 5, 4),
            (1, 2, 5, 4),
            (1, 2, 5, 4),
            r"q \(1, 4, 5, 4\), k \(1, 2, 5, 4\).* batch and heads must be the same",
        ),
        ((2, 1, 5, 4), (3, 1, 5, 4), (3, 1, 5, 4), "batch and heads must be the same"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_both(q, k, v, message):
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(torch.zeros(q), torch.zeros(k), torch.zeros(v))


def test_dtypes_and_devices_that_differ_are_refused_with_both():
    x = torch.zeros(1, 1, 2, 3)
    with pytest.raises(ValueError, match=r"q is torch.float32, k torch.float64 .*\.to\(dtype\)"):
        scaled_dot_product_attention(x, x.double(), x)
    with pytest.raises(ValueError, match=r"q is on cpu, k on meta and v on cpu.*\.to\(device\)"):
        scaled_dot_product_attention(x, x.to("meta"), x)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(N, M, dtype=torch.int64), r"the mask is torch.int64: make it boolean, .* \(mask.bool\(\)\)"),
        (
            torch.ones(N, M + 1, dtype=torch.bool),
            rf"\({N}, {M + 1}\) does not fit attention of shape \({B}, {H}, {N}, {M}\)",
        ),
        (torch.ones(B, N, M, dtype=torch.bool), rf"\({B}, {N}, {M}\) does not fit .* it has 4 axes, or 2"),
        (torch.ones(H, N, M, dtype=torch.bool), rf"\({H}, {N}, {M}\) does not fit .* it has 4 axes, or 2"),
        (torch.ones(B + 1, 1, N, M), "does not fit"),
        (torch.ones(N, M, device="meta"), "the mask is on meta, the tokens on cpu"),
    ],
)
def test_masks_that_do_not_fit_are_refused(qkv, mask, message):
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(*qkv, mask=mask)
