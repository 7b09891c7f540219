"""Uniform attention, against means."""

import pytest
import torch
from torch.testing import assert_close

from tests.architectures import EXACT
from tests.attention.inputs import qkv
from vit.attention import MultiHeadAttention, scaled_dot_product_attention
from vit.attention.mechanisms import UniformAttention

B, H, N, M, D, E = 2, 3, 5, 7, 11, 13


def test_every_output_is_the_mean_of_the_values():
    q, k, v = qkv(N, M, D, E)
    assert_close(UniformAttention()(q, k, v), v.mean(dim=2, keepdim=True).expand(B, H, N, E), **EXACT)
    assert_close(UniformAttention().weights(q, k), torch.full((B, H, N, M), 1 / M, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("kind", ["boolean", "additive", "causal"])
def test_masks_and_causality_are_those_of_softmax_attention_with_equal_keys(kind):
    q, k, v = qkv(N, M, D, E)
    mask = torch.rand(N, M) > 0.4
    mask[2] = False  # a query without keys, whose output is zero
    inputs = {
        "boolean": {"mask": mask},
        "additive": {"mask": torch.randn(B, 1, N, M).double()},
        "causal": {"causal": True},
    }[kind]
    expected, weights = scaled_dot_product_attention(q, torch.zeros_like(k), v, **inputs)
    assert_close(UniformAttention()(q, k, v, **inputs), expected, **EXACT)
    assert_close(UniformAttention().weights(q, k, **inputs), weights, **EXACT)


def test_the_gradient_reaches_the_values_and_not_the_queries_and_keys():
    attention = MultiHeadAttention(H * D, H, mechanism="uniform")
    attention(torch.randn(B, N, H * D)).square().sum().backward()
    queries_and_keys, values = attention.qkv.weight.grad.split([2 * H * D, H * D])
    assert (queries_and_keys == 0).all()
    assert (values != 0).any(dim=1).all()
