"""Self-attention without projections, against its formula."""

import pytest
import torch
from torch.testing import assert_close

from tests.architectures import EXACT
from vit.attention import MultiHeadAttention, simplified_attention
from vit.attention.mechanisms import SimplifiedAttention

B, N, H, D = 2, 5, 3, 7


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_several_heads_are_the_function_on_slices_of_the_channels(similarity):
    attention = MultiHeadAttention(H * D, H, mechanism="simplified", mechanism_kwargs={"similarity": similarity})
    x = torch.randn(B, N, H * D, dtype=torch.float64)
    outputs, weights = zip(*(simplified_attention(part, similarity) for part in x.split(D, dim=-1)), strict=True)
    assert_close(attention(x), torch.cat(outputs, dim=-1), **EXACT)
    assert_close(attention.weights(x), torch.stack(weights, dim=1), **EXACT)


def test_it_has_no_parameters():
    assert not list(MultiHeadAttention(H * D, H, mechanism="simplified").parameters())


def test_a_context_is_not_projected():
    attention = MultiHeadAttention(D, 1, mechanism="simplified")
    x, context = torch.randn(B, N, D).double(), torch.randn(B, 3, D).double()
    assert_close(attention(x, context), (x @ context.mT).softmax(-1) @ context, **EXACT)


def test_an_unknown_similarity_is_refused():
    with pytest.raises(ValueError, match="unknown similarity 'euclid': choose 'dot' or 'cosine'"):
        SimplifiedAttention("euclid")
