"""Multi-head attention, against torch's."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT, randomised
from tests.attention.inputs import flop_of
from vit.attention import (
    MECHANISMS,
    KeyValueCache,
    Mechanism,
    MultiHeadAttention,
    scaled_dot_product_attention,
)
from vit.model.positions import rotary_angles

B, N, H, D = 2, 5, 3, 7  # D channels in each of H heads


@pytest.mark.parametrize("qkv_bias", [True, False])
def test_equals_the_module_of_torch_with_the_same_weights(qkv_bias):
    ours = randomised(MultiHeadAttention(H * D, H, qkv_bias=qkv_bias))
    theirs = randomised(nn.MultiheadAttention(H * D, H, batch_first=True))
    state = {
        "in_proj_weight": ours.qkv.weight,
        "in_proj_bias": ours.qkv.bias if qkv_bias else torch.zeros(3 * H * D),
        "out_proj.weight": ours.proj.weight,
        "out_proj.bias": ours.proj.bias,
    }
    theirs.load_state_dict(state)
    tokens = torch.randn(B, N, H * D, dtype=torch.float64)
    output, weights = theirs(tokens, tokens, tokens, average_attn_weights=False)
    assert_close(ours(tokens), output, **EXACT)
    assert_close(ours.weights(tokens), weights, **EXACT)
    assert weights.shape == (B, H, N, N)


def test_qkv_bias_is_a_choice_and_the_output_always_has_a_bias():
    names = {name for name, _ in MultiHeadAttention(H * D, H, qkv_bias=False).named_parameters()}
    assert names == {"qkv.weight", "proj.weight", "proj.bias"}


def test_the_output_is_the_projection_of_each_heads_weighted_values():
    attention = randomised(MultiHeadAttention(H * D, H, qk_norm=True))
    tokens = torch.randn(B, N, H * D, dtype=torch.float64)
    weights, (_, _, v) = attention.weights(tokens), attention.heads(tokens)
    heads = [weights[:, h] @ v[:, h] for h in range(H)]
    assert_close(attention(tokens), attention.proj(torch.cat(heads, dim=-1)), **EXACT)


def test_qk_norm_normalises_the_queries_and_keys_of_each_head_and_not_the_values():
    attention = MultiHeadAttention(H * D, H, qk_norm=True).double()
    nn.init.constant_(attention.q_norm.weight, 2.0)
    nn.init.constant_(attention.k_norm.bias, 3.0)
    tokens = 10 * torch.randn(B, N, H * D, dtype=torch.float64)
    plain_q, plain_k, plain_v = attention.qkv(tokens).reshape(B, N, 3, H, D).permute(2, 0, 3, 1, 4)

    def standardised(x):
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()

    q, k, v = attention.heads(tokens)
    assert_close(q, 2 * standardised(plain_q), **EXACT)
    assert_close(k, standardised(plain_k) + 3, **EXACT)
    assert_close(v, plain_v, rtol=0, atol=0)


def test_queries_and_keys_take_the_dtype_of_the_values_when_their_norm_returns_another():
    class Float32Norm(nn.LayerNorm):
        """A LayerNorm that returns float32, as under autocast on CUDA."""

        def forward(self, x):
            return super().forward(x.float())

    attention = MultiHeadAttention(H * D, H, qk_norm=True).bfloat16()
    attention.q_norm, attention.k_norm = Float32Norm(D), Float32Norm(D)
    tokens = torch.randn(B, N, H * D, dtype=torch.bfloat16)
    assert [x.dtype for x in attention.heads(tokens)] == 3 * [torch.bfloat16]
    assert attention(tokens).dtype == torch.bfloat16


# Cross-attention, and widths that differ.


def test_cross_attention_equals_that_of_torch_with_the_same_weights():
    context_dim, m = 13, 7
    ours = randomised(MultiHeadAttention(H * D, H, context_dim=context_dim))
    theirs = nn.MultiheadAttention(H * D, H, kdim=context_dim, vdim=context_dim, batch_first=True).double()
    k_weight, v_weight = ours.kv.weight.chunk(2)
    state = {
        "q_proj_weight": ours.q.weight,
        "k_proj_weight": k_weight,
        "v_proj_weight": v_weight,
        "in_proj_bias": torch.cat([ours.q.bias, ours.kv.bias]),
        "out_proj.weight": ours.proj.weight,
        "out_proj.bias": ours.proj.bias,
    }
    theirs.load_state_dict(state)
    x, context = torch.randn(B, N, H * D).double(), torch.randn(B, m, context_dim).double()
    output, weights = theirs(x, context, context, average_attn_weights=False)
    assert_close(ours(x, context), output, **EXACT)
    assert_close(ours.weights(x, context), weights, **EXACT)
    assert weights.shape == (B, H, N, m)


@pytest.mark.parametrize(
    "kwargs",
    [{}, {"qkv_bias": False}, {"tie_qkv": True}, {"tie_kv": True}, {"num_kv_heads": 1}, {"qk_norm": True}],
    ids=str,
)
def test_cross_attention_to_itself_is_self_attention(kwargs):
    attention = randomised(MultiHeadAttention(H * D, H, **kwargs))
    x = torch.randn(B, N, H * D, dtype=torch.float64)
    assert_close(attention(x, x), attention(x), **EXACT)
    assert_close(attention.weights(x, x), attention.weights(x), **EXACT)


# Three sources: tokens that ask, tokens of the keys, tokens of the values.


def test_keys_and_values_of_two_sequences_of_different_widths_equal_attention_of_torch():
    ours = randomised(MultiHeadAttention(H * D, H, context_dim=13, value_context_dim=17))
    theirs = nn.MultiheadAttention(H * D, H, kdim=13, vdim=17, batch_first=True).double()
    state = {f"{part}_proj_weight": ours.get_parameter(f"{part}.weight") for part in "qkv"}
    state["in_proj_bias"] = torch.cat([ours.get_parameter(f"{part}.bias") for part in "qkv"])
    theirs.load_state_dict(state | {f"out_{name}": x for name, x in ours.state_dict().items() if "proj" in name})
    x, context, values = (torch.randn(B, n, width).double() for n, width in ((N, H * D), (7, 13), (7, 17)))
    output, weights = theirs(x, context, values, average_attn_weights=False)
    assert_close(ours(x, context, values=values), output, **EXACT)
    assert_close(ours.weights(x, context), weights, **EXACT)


@pytest.mark.parametrize(
    "kwargs",
    [{}, {"context_dim": 13}, {"tie_qkv": True}, {"tie_kv": True}, {"tie_kv": True, "context_dim": 13},
     {"num_kv_heads": 1}, {"num_kv_heads": 1, "context_dim": 13}, {"key_dim": 6, "value_dim": 15}, {"qk_norm": True},
     {"mechanism": "simplified"}],
    ids=str,
)  # fmt: skip
def test_values_may_come_from_other_tokens_than_the_keys(kwargs):
    attention = randomised(MultiHeadAttention(H * D, H, **kwargs))
    x = torch.randn(B, N, H * D).double()
    context, values = torch.randn(2, B, 7, kwargs.get("context_dim", H * D)).double()
    _, k, v = attention.heads(x, context, values=values)
    assert_close(k, attention.heads(x, context)[1], **EXACT)
    assert_close(v, attention.heads(x, values)[2], **EXACT)
    assert_close(attention(x, context, values=context), attention(x, context), **EXACT)
    assert (attention(x, context, values=values) - attention(x, context)).abs().max() > 1e-3


def test_an_adapter_around_the_projection_of_three_sources_is_called():
    attention = randomised(MultiHeadAttention(H * D, H, context_dim=13))
    x = torch.randn(B, N, H * D).double()
    context, values = torch.randn(2, B, 7, 13).double()
    expected = attention(x, context, values=values)
    attention.kv = nn.Sequential(attention.kv)
    assert_close(attention(x, context, values=values), expected, **EXACT)


def test_a_cache_keeps_the_values_of_other_tokens():
    attention = randomised(MultiHeadAttention(H * D, H, context_dim=13, value_context_dim=17))
    x, context, values = (torch.randn(B, n, width).double() for n, width in ((4, H * D), (7, 13), (7, 17)))
    cache = KeyValueCache(max_length=7)
    steps = [attention(part, context, values=values, cache=cache) for part in x.split([3, 1], dim=1)]
    assert_close(torch.cat(steps, dim=1), attention(x, context, values=values), **EXACT)


def test_values_that_do_not_fit_are_refused():
    x, context = torch.randn(B, N, H * D), torch.randn(B, 7, 13)
    three = MultiHeadAttention(H * D, H, context_dim=13, value_context_dim=17)
    for given in ((x, context), (x,)):
        with pytest.raises(
            ValueError, match=r"values from tokens of width 17 \(value_context_dim\) and keys .* 13: pass"
        ):
            three(*given)
    with pytest.raises(ValueError, match=r"values has shape \(2, 7, 13\), .* check value_context_dim \(17\)"):
        three(x, context, values=context)
    with pytest.raises(ValueError, match=r"values have shape \(2, 6, 17\) and the context \(2, 7, 13\): give each key"):
        three(x, context, values=torch.randn(B, 6, 17))
    with pytest.raises(ValueError, match="values are given without the tokens of their keys: pass these as context"):
        MultiHeadAttention(H * D, H)(x, values=x)


@pytest.mark.parametrize("context_dim", [None, 13])
def test_key_value_and_output_widths_may_differ(context_dim):
    attention = randomised(
        MultiHeadAttention(11, H, context_dim=context_dim, key_dim=H * 2, value_dim=H * 5, out_dim=17)
    )
    x, context = torch.randn(B, N, 11).double(), torch.randn(B, 7, context_dim or 11).double()
    q, k, v = attention.heads(x, context)
    assert (q.shape, k.shape, v.shape) == ((B, H, N, 2), (B, H, 7, 2), (B, H, 7, 5))
    output = attention(x, context)
    assert output.shape == (B, N, 17)
    mixed = (q @ k.mT * 2**-0.5).softmax(-1) @ v
    assert_close(output, attention.proj(mixed.transpose(1, 2).flatten(2)), **EXACT)


def test_tied_projections_make_the_logits_symmetric_with_a_third_of_the_weights():
    attention = randomised(MultiHeadAttention(H * D, H, tie_qkv=True))
    x = torch.randn(B, N, H * D, dtype=torch.float64)
    q, k, v = attention.heads(x)
    assert attention.qkv.weight.shape == (H * D, H * D)
    assert_close(q @ k.mT, (q @ k.mT).mT, **EXACT)
    assert_close(v, k, rtol=0, atol=0)
    output, _ = scaled_dot_product_attention(q, k, v)
    assert_close(attention(x), attention.proj(output.transpose(1, 2).flatten(2)), **EXACT)
    context = torch.randn(B, 7, H * D, dtype=torch.float64)
    expected, _ = scaled_dot_product_attention(q, *2 * [attention.heads(context)[1]])
    assert_close(attention(x, context), attention.proj(expected.transpose(1, 2).flatten(2)), **EXACT)


@pytest.mark.parametrize("context_dim", [None, 13])
@pytest.mark.parametrize("num_kv_heads", [None, 1])
def test_tied_keys_and_values_equal_separate_projections_of_the_same_weights(context_dim, num_kv_heads):
    kwargs = {"context_dim": context_dim, "num_kv_heads": num_kv_heads}
    tied = randomised(MultiHeadAttention(H * D, H, tie_kv=True, **kwargs))
    separate = randomised(MultiHeadAttention(H * D, H, **kwargs))
    joint = "qkv" if context_dim is None else "kv"
    rows = (num_kv_heads or H) * D  # of the projection to keys, the last of the joint one

    def doubled(weights):
        return torch.cat([weights, weights[-rows:]])

    state = {name: doubled(x) if name.startswith(f"{joint}.") else x for name, x in tied.state_dict().items()}
    separate.load_state_dict(state)
    x, context = torch.randn(B, N, H * D).double(), torch.randn(B, 7, context_dim or H * D).double()
    assert_close(tied(x, context), separate(x, context), **EXACT)
    assert_close(tied.weights(x, context), separate.weights(x, context), **EXACT)
    if context_dim is None:
        assert_close(tied(x), separate(x), **EXACT)


def test_an_adapter_around_tied_keys_and_values_is_called():
    attention = randomised(MultiHeadAttention(H * D, H, tie_kv=True))
    x, context = torch.randn(B, N, H * D).double(), torch.randn(B, 7, H * D).double()
    expected = attention(x, context)
    attention.qkv = nn.Sequential(attention.qkv)
    assert_close(attention(x, context), expected, **EXACT)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 3, 6])
def test_grouped_heads_equal_separate_ones_whose_keys_and_values_are_copies(num_kv_heads):
    heads = 6
    grouped = randomised(MultiHeadAttention(heads * D, heads, num_kv_heads=num_kv_heads))
    separate = randomised(MultiHeadAttention(heads * D, heads))

    def copied(rows):
        q, k, v = rows.split([heads * D, num_kv_heads * D, num_kv_heads * D])
        k, v = (x.unflatten(0, (num_kv_heads, D)).repeat_interleave(heads // num_kv_heads, 0) for x in (k, v))
        return torch.cat([q, k.flatten(0, 1), v.flatten(0, 1)])

    state = {name: copied(x) if "qkv" in name else x for name, x in grouped.state_dict().items()}
    separate.load_state_dict(state)
    x = torch.randn(B, N, heads * D, dtype=torch.float64)
    assert grouped.heads(x)[1].shape == (B, num_kv_heads, N, D)
    assert_close(grouped(x), separate(x), **EXACT)
    assert_close(grouped.weights(x), separate.weights(x), **EXACT)


# Masks and caches.


def test_masks_reach_the_heads():
    attention = randomised(MultiHeadAttention(H * D, H))
    x, mask = torch.randn(B, N, H * D, dtype=torch.float64), torch.rand(B, 1, N, N) > 0.4
    q, k, v = attention.heads(x)
    expected, weights = scaled_dot_product_attention(q, k, v, mask=mask)
    assert_close(attention(x, mask=mask), attention.proj(expected.transpose(1, 2).flatten(2)), **EXACT)
    assert_close(attention.weights(x, mask=mask), weights, **EXACT)


CACHED = [name for name, mechanism in MECHANISMS.items() if "causal" in mechanism.takes]
SHARING = [(name, shared) for name in CACHED for shared in (None, 1) if MECHANISMS[name].projected or not shared]


@pytest.mark.parametrize(("mechanism", "num_kv_heads"), SHARING)
@pytest.mark.parametrize("steps", [[1] * 7, [3, 1, 2, 1], [7]], ids=str)
def test_step_by_step_with_a_cache_equals_the_full_causal_pass(mechanism, num_kv_heads, steps):
    kwargs = {"mechanism": mechanism, "num_kv_heads": num_kv_heads}
    attention = randomised(MultiHeadAttention(24, 4, causal=True, **kwargs))
    x = torch.randn(B, 7, 24, dtype=torch.float64)
    cache = KeyValueCache(max_length=9)
    outputs = [attention(part, cache=cache) for part in x.split(steps, dim=1)]
    assert cache.length == 7
    assert_close(torch.cat(outputs, dim=1), attention(x), **EXACT)


def test_a_cached_step_costs_as_much_as_the_tokens_so_far_and_no_more():
    attention = MultiHeadAttention(H * D, H, causal=True, mechanism="talking").eval()
    costs = []
    cache = KeyValueCache(max_length=400)
    with torch.no_grad():
        for length in (100, 200, 400):
            attention(torch.randn(1, length - 1 - cache.length, H * D), cache=cache)
            costs.append(flop_of(attention, torch.randn(1, 1, H * D), cache=cache))
    projections = 2 * 4 * (H * D) ** 2
    assert (costs[2] - projections) / (costs[1] - projections) == pytest.approx(2, rel=0.05)
    assert (costs[1] - projections) / (costs[0] - projections) == pytest.approx(2, rel=0.05)


def test_a_mask_covers_the_cached_keys_and_the_new_ones():
    attention = randomised(MultiHeadAttention(H * D, H, causal=True))
    x, mask = torch.randn(B, 7, H * D, dtype=torch.float64), torch.rand(B, 1, 7, 7) > 0.4
    cache = KeyValueCache(max_length=7)
    first = attention(x[:, :4], mask=mask[..., :4, :4], cache=cache)
    second = attention(x[:, 4:], mask=mask[..., 4:, :], cache=cache)
    assert_close(torch.cat([first, second], dim=1), attention(x, mask=mask), **EXACT)


@pytest.mark.parametrize(
    "mask", [torch.ones(N, N, dtype=torch.long), torch.ones(N, N + 1, dtype=torch.bool)], ids=["numbers", "size"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_that_does_not_fit_is_refused_before_the_cache_grows(mask, dtype):
    attention, cache = MultiHeadAttention(H * D, H, causal=True).to(dtype), KeyValueCache(max_length=2 * N)
    x = torch.randn(B, N, H * D, dtype=dtype)
    for kwargs in ({}, {"cache": cache}):
        with pytest.raises(ValueError, match="mask"):
            attention(x, mask=mask, **kwargs)
    assert cache.length == 0


def test_a_cache_of_self_attention_needs_causal_attention():
    message = "a cache of self-attention needs causal=True: build it so, or pass a context to keep"
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(H * D, H)(torch.randn(1, 2, H * D), cache=KeyValueCache(5))


@pytest.mark.parametrize("kwargs", [{}, {"context_dim": 5}, {"tie_qkv": True}, {"tie_kv": True}, {"qk_norm": True}])
def test_a_cache_keeps_the_keys_and_values_of_a_context_which_is_projected_once(kwargs):
    attention = randomised(MultiHeadAttention(H * D, H, **kwargs))
    x = torch.randn(B, 4, H * D, dtype=torch.float64)
    context = torch.randn(B, 7, kwargs.get("context_dim", H * D), dtype=torch.float64)
    cache = KeyValueCache(max_length=7)
    first = attention(x[:, :3], context, cache=cache)
    second = attention(x[:, 3:], torch.full_like(context, torch.nan), cache=cache)  # not read again
    assert_close(torch.cat([first, second], dim=1), attention(x, context), **EXACT)
    with pytest.raises(
        ValueError, match=r"the cache holds \d contexts of 7 tokens, and \d of 5 are given: make a cache"
    ):
        attention(x, context[:, :5], cache=cache)
    with pytest.raises(ValueError, match="context has shape"):
        attention(x, context[..., :-1], cache=cache)


def test_angles_are_those_of_the_tokens_of_self_attention():
    attention = MultiHeadAttention(H * 4, H)
    x = torch.randn(B, 5, H * 4)
    for shape in ((4, 2), (1, 2), (5, 1)):
        with pytest.raises(ValueError, match=r"angles have shape .*, and the tokens need \(5, 2\): compute them by"):
            attention(x, angles=torch.zeros(shape))
    for cache in (None, KeyValueCache(5)):
        with pytest.raises(ValueError, match="pass no angles beside a context"):
            attention(x, x, angles=torch.zeros(5, 2), cache=cache)


@pytest.mark.parametrize("method", ["__call__", "weights", "heads"])
def test_a_context_of_attention_with_rotary_positions_is_refused_as_it_has_no_angles(method):
    attention, x = MultiHeadAttention(H * 4, H), torch.randn(B, 5, H * 4)
    attention.is_rotary = True
    with pytest.raises(ValueError, match="turn by rotary angles, and those of a context have none: call it without a"):
        getattr(attention, method)(x, x)


def test_rotary_angles_make_the_weights_depend_on_the_distance_of_two_tokens_alone():
    attention = randomised(MultiHeadAttention(H * 4, H))
    x = torch.randn(B, 1, H * 4, dtype=torch.float64).expand(B, 5, H * 4)  # the same token at five places
    logits = attention.weights(x, angles=rotary_angles(torch.arange(5).double(), 4)).log()
    for shift in (0, 100):
        moved = attention.weights(x, angles=rotary_angles(torch.arange(5).double() + shift, 4)).log()
        assert_close(moved, logits, rtol=0, atol=1e-9)
    differences = logits - logits.diagonal(dim1=2, dim2=3)[..., None]
    assert_close(differences[..., 1:, 1:], differences[..., :-1, :-1], rtol=0, atol=1e-9)
    assert differences.std() > 1e-3


# Refused arguments and inputs.


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"embed_dim": 190, "num_heads": 12}, r"embed_dim \(190\) .* num_heads \(12\): take embed_dim 180, or another"),
        ({"embed_dim": 5, "num_heads": 7}, r"embed_dim \(5\) must be divisible by num_heads \(7\): take embed_dim 7"),
        ({"key_dim": 20}, r"key_dim \(20\) must be divisible by num_heads \(3\): take key_dim 18"),
        ({"value_dim": 2}, r"value_dim \(2\) must be divisible by num_heads \(3\): take value_dim 3"),
        ({"num_kv_heads": 2}, r"num_heads \(3\) must be divisible by num_kv_heads \(2\)"),
        ({"key_dim": 21.0}, r"key_dim \(21\.0\) must be a positive whole number"),
        ({"value_dim": 0}, r"value_dim \(0\) must be a positive whole number"),
        ({"num_kv_heads": 0}, r"num_kv_heads \(0\) must be a positive whole number"),
        ({"tie_qkv": True, "value_dim": 9}, r"tie_qkv needs one width .*embed_dim 21.*value_dim 9"),
        ({"tie_qkv": True, "context_dim": 9}, r"tie_qkv needs one width .*context_dim 9"),
        ({"tie_qkv": True, "value_context_dim": 9}, r"tie_qkv needs one width .*value_context_dim 9"),
        ({"tie_kv": True, "value_context_dim": 9}, r"tie_kv needs .* \(context_dim 21, value_context_dim 9\)"),
        ({"mechanism": "simplified", "value_context_dim": 9}, r"SimplifiedAttention has no projections: .*\[9, 21\]"),
        ({"tie_qkv": True, "num_kv_heads": 1}, r"tie_qkv needs one width .*num_kv_heads 1"),
        ({"tie_kv": True, "tie_qkv": True}, r"tie_qkv \(True\) makes keys and values equal as well: set tie_kv"),
        ({"tie_kv": True, "key_dim": 9}, r"tie_kv needs keys as wide as values \(key_dim 9, value_dim 21\)"),
        ({"mechanism": "simplified", "tie_kv": True}, "SimplifiedAttention has no projections.* without .*tie_kv"),
        (
            {"mechanism": "simplified", "out_dim": 9},
            r"SimplifiedAttention has no projections: .* \(21\), not \[9, 21\]",
        ),
        ({"mechanism": "simplified", "qk_norm": True}, "SimplifiedAttention has no projections"),
        (
            {"mechanism": "neighborhood", "causal": True},
            "attention 'neighborhood' cannot be causal: choose one of softmax, chunked, window",
        ),
        ({"mechanism": "performer", "causal": True}, "attention 'performer' cannot be causal"),
    ],
)
def test_widths_and_numbers_of_heads_that_do_not_fit_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**{"embed_dim": H * D, "num_heads": H} | kwargs)


def test_tokens_that_do_not_fit_are_refused_with_both_values():
    attention = MultiHeadAttention(H * D, H, context_dim=13)
    x, context = torch.randn(B, N, H * D), torch.randn(B, N, 13)
    with pytest.raises(ValueError, match=r"x has shape \(2, 5, 20\), but this attention takes \(batch, tokens, 21\)"):
        attention(x[..., 1:], context)
    with pytest.raises(ValueError, match=r"context has shape \(2, 5, 21\).*\(batch, tokens, 13\): check context_dim"):
        attention(x, x)
    with pytest.raises(ValueError, match=r"x has shape \(5, 21\)"):
        attention(x[0], context)
    with pytest.raises(ValueError, match=r"a context of width 13 \(context_dim\) .* width 21: pass the context"):
        attention(x)
    with pytest.raises(ValueError, match=r"x is torch\.float64 and the weights torch.float32"):
        attention(x.double(), context)
    with pytest.raises(ValueError, match="context is on meta and the weights on cpu"):
        attention(x, context.to("meta"))


def test_an_unknown_mechanism_is_refused_by_name_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown attention 'quantum': choose one of") as refusal:
        MultiHeadAttention(H * D, H, mechanism="quantum")
    for known in MECHANISMS:
        assert known in str(refusal.value)


def test_the_mechanism_is_built_from_its_name_and_arguments(monkeypatch):
    class Shifted(Mechanism):
        """Values, shifted."""

        def __init__(self, shift):
            super().__init__()
            self.shift = shift

        def forward(self, q, k, v):
            return v + self.shift

    monkeypatch.setitem(MECHANISMS, "shifted", Shifted)
    attention = MultiHeadAttention(H * D, H, mechanism="shifted", mechanism_kwargs={"shift": 5.0}).double()
    tokens = torch.randn(B, N, H * D, dtype=torch.float64)
    values = attention.qkv(tokens)[..., 2 * H * D :]
    assert_close(attention(tokens), attention.proj(values + 5.0), **EXACT)


def test_a_cached_context_of_another_number_of_images_is_refused():
    attention, x, context = MultiHeadAttention(8, 2), torch.randn(4, 1, 8), torch.randn(4, 7, 8)
    cache = KeyValueCache(7)
    attention(x, context, cache=cache)
    with pytest.raises(ValueError, match="the cache holds 4 contexts of 7 tokens, and 2 of 7 are given"):
        attention(x, context[:2], cache=cache)


def test_causal_attention_to_a_cached_context_is_refused():
    attention = MultiHeadAttention(8, 2, causal=True)
    with pytest.raises(ValueError, match="build the attention with causal False, or pass no cache"):
        attention(torch.randn(1, 1, 8), torch.randn(1, 3, 8), cache=KeyValueCache(3))


@pytest.mark.parametrize("name", ["qkv_bias", "causal", "tie_qkv", "tie_kv", "qk_norm"])
def test_a_switch_is_true_or_false_and_no_text(name):
    with pytest.raises(ValueError, match=rf"{name} \('no'\) must be True or False"):
        MultiHeadAttention(8, 2, **{name: "no"})


@pytest.mark.parametrize("name", [name for name, mechanism in MECHANISMS.items() if "causal" in mechanism.takes])
def test_causal_attention_refuses_more_queries_than_keys_as_the_first_would_see_none(name):
    attention = MultiHeadAttention(12, 2, causal=True, mechanism=name)
    with pytest.raises(
        ValueError, match="there are 5 queries and 3 keys, and the queries of causal attention are the la"
    ):
        attention(torch.randn(B, 5, 12), torch.randn(B, 3, 12))
    if name in ("softmax", "window"):
        with pytest.raises(ValueError, match="there are 5 queries and 3 keys"):
            attention.weights(torch.randn(B, 5, 12), torch.randn(B, 3, 12))
