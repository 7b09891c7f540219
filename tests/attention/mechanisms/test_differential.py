"""Differential attention, against its formula and against softmax."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT
from tests.attention.inputs import qkv
from vit.attention import MultiHeadAttention, scaled_dot_product_attention
from vit.attention.mechanisms import DifferentialAttention
from vit.model import TransformerDecoder, VisionTransformer
from vit.model.positions import ROTARY, rotary_angles

N, M, D, E = 5, 7, 8, 13


@pytest.mark.parametrize("inputs", [{}, {"causal": True}, {"mask": torch.rand(N, M) > 0.3}], ids=["", "causal", "mask"])
def test_it_is_the_difference_of_two_softmaxes_normalised_and_scaled(inputs):
    q, k, v = qkv(N, M, D, E)
    attention = DifferentialAttention(D, E, block_index=3).double()
    nn.init.normal_(attention.norm.weight)
    first, second = (
        scaled_dot_product_attention(q[..., half], k[..., half], v, **inputs)[1]
        for half in (slice(0, D // 2), slice(D // 2, D))
    )
    learned = (attention.lambda_q1 @ attention.lambda_k1).exp() - (attention.lambda_q2 @ attention.lambda_k2).exp()
    factor = learned + 0.8 - 0.6 * math.exp(-0.9)
    weights = first - factor * second
    assert_close(attention.weights(q, k, **inputs), weights, **EXACT)
    mixed = weights @ v
    normed = mixed / (mixed.square().mean(-1, keepdim=True) + 1e-5).sqrt() * attention.norm.weight
    assert_close(attention(q, k, v, **inputs), normed * (0.2 + 0.6 * math.exp(-0.9)), **EXACT)


def test_the_initial_lambda_grows_with_the_block_index():
    starts = [DifferentialAttention(D, E, block_index=i).lambda_init for i in range(12)]
    assert starts[0] == pytest.approx(0.2)
    assert starts == sorted(starts)
    assert starts[11] == pytest.approx(0.778, abs=1e-3)


def test_heads_that_cannot_be_halved_are_refused():
    with pytest.raises(ValueError, match=r"splits each head in halves: .* \(7\) must be even; take another number"):
        MultiHeadAttention(21, 3, mechanism="differential")


def test_rotary_positions_count_by_their_difference_as_each_half_turns_by_itself():
    attention = MultiHeadAttention(24, 3, mechanism="differential").double()
    x, places = torch.randn(2, 6, 24).double(), torch.arange(6).double()
    near, far = (attention(x, angles=rotary_angles(places + start, 8)) for start in (0, 50))
    assert_close(near, far, **EXACT)
    q, k, _ = attention.heads(x, angles=rotary_angles(places, 8))
    plain_q, plain_k, _ = attention.heads(x)
    angles = rotary_angles(places, 4)
    turns = torch.polar(torch.ones_like(angles), angles)
    for half in (slice(0, 4), slice(4, 8)):
        for turned, plain in ((q, plain_q), (k, plain_k)):
            pairs = torch.complex(*plain[..., half].chunk(2, dim=-1)) * turns
            assert_close(turned[..., half], torch.cat([pairs.real, pairs.imag], dim=-1), **EXACT)


@pytest.mark.parametrize("kind", ROTARY)
def test_rotary_positions_of_a_grid_turn_each_half_by_row_and_by_column(kind):
    model = VisionTransformer(embed_dim=48, depth=1, num_heads=3, attention="differential", pos_embed=kind)
    half = ROTARY[kind]((8, 8), (8, 8), 8, model.pos_embed)
    assert_close(model._angles((8, 8), model.pos_embed)[1:, ::2], half)


def test_halves_that_cannot_turn_are_refused():
    with pytest.raises(
        ValueError, match=r"2 parts of a head, so the width of a head \(36 / 3\) must be a mult.* of 8: t"
    ):
        VisionTransformer(embed_dim=36, depth=1, num_heads=3, attention="differential", pos_embed="rope")
    with pytest.raises(
        ValueError, match=r"embed_dim \(18\) over num_heads \(3\) must be a multiple of 4 for positions"
    ):
        TransformerDecoder(7, 18, 1, 3, 5, attention="differential", positions="rope")
