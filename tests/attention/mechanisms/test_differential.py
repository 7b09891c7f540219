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
