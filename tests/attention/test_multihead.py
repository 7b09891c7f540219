"""Multi-head attention, against torch's."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vit.attention import MECHANISMS, MultiHeadAttention

B, N, H, D = 2, 5, 3, 7  # D channels in each of H heads
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def randomised(module):
    """The module in float64, every parameter drawn anew, so that none is zero or one."""
    for parameter in module.double().parameters():
        nn.init.normal_(parameter)
    return module


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
    assert {name for name, _ in MultiHeadAttention(H * D, H, qkv_bias=False).named_parameters()} == {
        "qkv.weight",
        "proj.weight",
        "proj.bias",
    }


def test_the_output_is_the_values_of_each_head_under_its_weights_projected():
    attention = randomised(MultiHeadAttention(H * D, H, qk_norm=True))
    tokens = torch.randn(B, N, H * D, dtype=torch.float64)
    weights, (_, _, v) = attention.weights(tokens), attention.heads(tokens)
    heads = [weights[:, h] @ v[:, h] for h in range(H)]
    assert_close(attention(tokens), attention.proj(torch.cat(heads, dim=-1)), **EXACT)


def test_qk_norm_normalises_the_queries_and_keys_of_each_head_and_leaves_the_values():
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
        """What autocast makes of LayerNorm on CUDA."""

        def forward(self, x):
            return super().forward(x.float())

    attention = MultiHeadAttention(H * D, H, qk_norm=True).bfloat16()
    attention.q_norm, attention.k_norm = Float32Norm(D), Float32Norm(D)
    tokens = torch.randn(B, N, H * D, dtype=torch.bfloat16)
    assert [x.dtype for x in attention.heads(tokens)] == 3 * [torch.bfloat16]
    assert attention(tokens).dtype == torch.bfloat16


def test_permuting_the_tokens_permutes_the_output():
    attention = randomised(MultiHeadAttention(H * D, H))
    tokens, order = torch.randn(B, N, H * D, dtype=torch.float64), torch.randperm(N)
    assert_close(attention(tokens[:, order]), attention(tokens)[:, order], **EXACT)


@pytest.mark.parametrize(
    ("embed_dim", "num_heads", "remedy"),
    [(190, 12, "take embed_dim 180, or another number of heads"), (5, 7, "take embed_dim 7, or another")],
)
def test_a_width_that_heads_do_not_divide_is_refused_with_both_numbers_and_a_remedy(embed_dim, num_heads, remedy):
    message = rf"embed_dim \({embed_dim}\) must be divisible by num_heads \({num_heads}\): {remedy}"
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(embed_dim, num_heads)


def test_an_unknown_mechanism_is_refused_by_name_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown attention 'quantum': choose one of") as refusal:
        MultiHeadAttention(H * D, H, mechanism="quantum")
    for known in MECHANISMS:
        assert known in str(refusal.value)


def test_the_mechanism_is_made_of_its_name_and_arguments(monkeypatch):
    class Shifted(nn.Module):
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
