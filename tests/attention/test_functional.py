"""The formulas of attention, against values computed by hand and against torch."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tests.attention.conftest import EXACT, B, D, N
from vit.attention import (
    attention_weights,
    scaled_dot_product_attention,
    simplified_attention,
)


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
