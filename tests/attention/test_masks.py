"""Masks: what they leave is the attention to the other keys alone."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tests.attention.conftest import EXACT, B, D, H, M, N
from vit.attention import attention_weights, causal_mask, mask_logits, padding_mask, scaled_dot_product_attention
from vit.attention.masks import softmax_mask


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
