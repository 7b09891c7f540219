"""The formulas of attention, against values worked out by hand and against torch."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from vit.attention import attention_weights, scaled_dot_product_attention

B, H, N, M, D, E = 2, 3, 5, 7, 11, 13
EXACT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture
def qkv():
    q, k, v = torch.randn(B, H, N, D), torch.randn(B, H, M, D), torch.randn(B, H, M, E)
    return q.double(), k.double(), v.double()


def test_weights_and_output_are_those_worked_out_by_hand():
    # Products of the query (2 ln 3, 0, 0, 0) with the keys: 0 and 2 ln 3. Times 4 ** -0.5: 0 and ln 3.
    # Exponentials: 1 and 3. So the weights are 1/4 and 3/4, and the output is (4 + 3 * 8) / 4.
    q = torch.tensor([2 * math.log(3), 0, 0, 0]).reshape(1, 1, 1, 4)
    k = torch.tensor([[0.0, 1, 1, 1], [1, 0, 0, 0]]).reshape(1, 1, 2, 4)
    v = torch.tensor([4.0, 8.0]).reshape(1, 1, 2, 1)
    output, weights = scaled_dot_product_attention(q, k, v)
    assert_close(weights, torch.tensor([[[[0.25, 0.75]]]]))
    assert_close(output, torch.tensor([[[[7.0]]]]))


def test_a_given_scale_takes_the_place_of_the_default():
    q = torch.tensor([math.log(3), 0, 0, 0]).reshape(1, 1, 1, 4)
    k = torch.tensor([[0.0, 1, 1, 1], [1, 0, 0, 0]]).reshape(1, 1, 2, 4)
    v = torch.tensor([4.0, 8.0]).reshape(1, 1, 2, 1)
    output, weights = scaled_dot_product_attention(q, k, v, scale=1.0)
    assert_close(weights, torch.tensor([[[[0.25, 0.75]]]]))
    assert_close(output, torch.tensor([[[[7.0]]]]))


def test_each_query_has_non_negative_weights_that_sum_to_one(qkv):
    q, k, _ = qkv
    weights = attention_weights(q, k)
    assert weights.shape == (B, H, N, M)
    assert (weights >= 0).all()
    assert_close(weights.sum(dim=-1), torch.ones(B, H, N, dtype=torch.float64))


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


def test_permuting_keys_and_values_together_changes_nothing(qkv):
    q, k, v = qkv
    order = torch.randperm(M)
    output, weights = scaled_dot_product_attention(q, k, v)
    permuted_output, permuted_weights = scaled_dot_product_attention(q, k[:, :, order], v[:, :, order])
    assert_close(permuted_output, output, **EXACT)
    assert_close(permuted_weights, weights[..., order], **EXACT)
