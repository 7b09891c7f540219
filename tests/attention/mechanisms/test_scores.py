"""Additive and general scores, against their formulas written pair by pair."""

import pytest
import torch
from torch.testing import assert_close

import vit
from tests.architectures import EXACT, randomised
from tests.attention.inputs import qkv
from vit.attention import MultiHeadAttention, scaled_dot_product_attention
from vit.attention.mechanisms import AdditiveAttention, GeneralAttention, UniformAttention
from vit.capture import capture_attention

H, N, M, D = 3, 5, 7, 11
MASKS = pytest.mark.parametrize(
    "around",
    [{}, {"mask": torch.ones(N, M, dtype=torch.bool).tril(1)}, {"causal": True}],
    ids=["all", "mask", "causal"],
)


def softmax_of(logits, *, mask=None, causal=False):
    """The softmax of the logits (B, H, N, M) that are not masked."""
    seen = torch.ones(N, M, dtype=torch.bool).tril(M - N) if causal else mask
    return (logits if seen is None else logits.masked_fill(~seen, -torch.inf)).softmax(dim=-1)


@MASKS
def test_additive_scores_are_those_of_bahdanau_for_each_pair_of_tokens(around):
    q, k, v = qkv(N, M, D)
    attention = randomised(AdditiveAttention(H, D))
    logits = torch.stack(
        [
            torch.stack([(q[:, :, n] + k[:, :, m]).tanh().mul(attention.direction).sum(-1) for m in range(M)], dim=-1)
            for n in range(N)
        ],
        dim=-2,
    )
    weights = softmax_of(logits, **around)
    assert_close(attention.weights(q, k, **around), weights, **EXACT)
    assert_close(attention(q, k, v, **around), weights @ v, **EXACT)


def test_the_projections_are_the_two_matrices_of_the_additive_score():
    attention = randomised(MultiHeadAttention(H * D, H, mechanism="additive", qkv_bias=False))
    x, context = torch.randn(2, N, H * D).double(), torch.randn(2, M, H * D).double()
    w, u, _ = attention.qkv.weight.unflatten(0, (3, H, D))
    for h in range(H):
        sums = (x @ w[h].T)[:, :, None] + (context @ u[h].T)[:, None]
        expected = (sums.tanh() @ attention.mechanism.direction[h]).softmax(dim=-1)
        assert_close(attention.weights(x, context)[:, h], expected, **EXACT)


def test_without_a_direction_additive_attention_is_uniform():
    q, k, v = qkv(N, M, D)
    attention = AdditiveAttention(H, D).double()
    torch.nn.init.zeros_(attention.direction)
    assert_close(attention(q, k, v), UniformAttention()(q, k, v), **EXACT)


def test_an_additive_logit_is_bounded_however_large_the_queries_are():
    q, k, _ = qkv(N, M, D, scale=1000.0)
    attention = AdditiveAttention(H, D).double()
    weights = attention.weights(q, k)
    bound = 2 * attention.direction.abs().sum(dim=-1)[:, None]
    ratios = weights.log().amax(dim=-1) - weights.log().amin(dim=-1)
    assert (ratios <= bound).all()


@MASKS
def test_general_scores_are_those_of_luong_head_by_head(around):
    q, k, v = qkv(N, M, D)
    attention = randomised(GeneralAttention(H, D))
    logits = torch.stack([q[:, h] @ attention.form[h] @ k[:, h].mT * D**-0.5 for h in range(H)], dim=1)
    weights = softmax_of(logits, **around)
    assert_close(attention.weights(q, k, **around), weights, **EXACT)
    assert_close(attention(q, k, v, **around), weights @ v, **EXACT)


@MASKS
def test_with_the_identity_a_general_score_is_the_scaled_product(around):
    q, k, v = qkv(N, M, D)
    expected, weights = scaled_dot_product_attention(q, k, v, **around)
    attention = GeneralAttention(H, D).double()
    assert_close(attention(q, k, v, **around), expected, rtol=0, atol=1e-12)
    assert_close(attention.weights(q, k, **around), weights, rtol=0, atol=1e-12)


def test_a_general_score_is_a_softmax_of_projections_that_absorb_its_matrix():
    general = randomised(MultiHeadAttention(H * D, H, mechanism="general", qkv_bias=False))
    plain = randomised(MultiHeadAttention(H * D, H, qkv_bias=False))
    q, k, v = general.qkv.weight.detach().unflatten(0, (3, H, D))
    absorbed = torch.einsum("hdc,hde->hec", q, general.mechanism.form.detach())
    plain.load_state_dict(
        {"qkv.weight": torch.stack([absorbed, k, v]).flatten(0, 2)}
        | {name: x for name, x in general.state_dict().items() if name.startswith("proj")}
    )
    tokens = torch.randn(2, N, H * D).double()
    assert_close(general(tokens), plain(tokens), **EXACT)


@pytest.mark.parametrize("attention", ["additive", "general"])
def test_the_attention_of_a_model_is_captured(attention):
    model = randomised(vit.VisionTransformer((6, 10), 2, embed_dim=12, depth=2, num_heads=3, attention=attention))
    images = torch.randn(2, 3, 6, 10).double()
    first, _ = capture_attention(model, images)
    block = model.blocks[0]
    assert_close(first, block.attn.weights(block.norm1(model.embed(images))), **EXACT)


def test_directions_have_no_weight_decay():
    model = vit.VisionTransformer(embed_dim=24, depth=1, num_heads=3, attention="additive")
    assert "blocks.0.attn.mechanism.direction" in model.no_weight_decay()
