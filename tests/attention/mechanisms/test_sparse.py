"""Fixed patterns and the largest logits, against softmax with masks."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.architectures import EXACT
from tests.attention.inputs import assert_same_forward_and_backward, flop_of, qkv
from vit.attention import scaled_dot_product_attention
from vit.attention.mechanisms import SparseAttention, TopKAttention

SIDES = st.sampled_from([1, 2, 3, 5, 7, 11])


@settings(max_examples=40, deadline=None)
@given(
    rows=SIDES,
    columns=SIDES,
    prefix=st.integers(0, 3),
    block=st.none() | st.integers(1, 13),
    stride=st.none() | st.integers(1, 13),
)
def test_a_patch_attends_to_its_block_and_to_patches_a_multiple_of_the_stride_away(
    rows, columns, prefix, block, stride
):
    patches = rows * columns
    j = torch.arange(patches)
    i = j[:, None]
    in_block = i // (block or columns) == j // (block or columns)
    strided = (i - j) % (stride or columns) == 0
    mask = F.pad(in_block | strided, (prefix, 0, prefix, 0), value=True)
    inputs = q, k, _ = qkv(prefix + patches)
    expected, weights = scaled_dot_product_attention(*inputs, mask=mask)
    sparse = SparseAttention(block, stride)
    assert_same_forward_and_backward(sparse(*inputs, grid=(rows, columns)), expected, inputs)
    assert_close(sparse.weights(q, k, grid=(rows, columns)), weights, **EXACT)


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.sampled_from([1, 2, 3, 5, 7, 11, 37]),
    before=st.integers(0, 20),
    block=st.none() | st.integers(1, 13),
    stride=st.none() | st.integers(1, 13),
)
def test_causal_a_token_attends_to_those_of_the_pattern_that_come_before_it(tokens, before, block, stride):
    q, k, v = inputs = qkv(tokens, tokens + before)
    j = torch.arange(tokens + before)
    i = j[before:, None]
    mask = ((i // (block or 16) == j // (block or 16)) | ((i - j) % (stride or 16) == 0)) & (j <= i)
    expected, weights = scaled_dot_product_attention(q, k, v, mask=mask)
    sparse = SparseAttention(block, stride)
    assert_same_forward_and_backward(sparse(q, k, v, causal=True), expected, inputs)
    assert_close(sparse.weights(q, k, causal=True), weights, **EXACT)


@pytest.mark.parametrize("method", ["forward", "weights"])
def test_causal_more_queries_than_keys_are_refused(method):
    q, k, v = qkv(10, 9)
    inputs = (q, k, v) if method == "forward" else (q, k)
    with pytest.raises(ValueError, match="there are 10 queries and 9 keys, and the queries of causal attention are"):
        getattr(SparseAttention(3, 4), method)(*inputs, causal=True)


def test_the_cost_grows_with_n_to_the_power_of_three_halves():
    few, many = (flop_of(SparseAttention(), *torch.randn(3, 1, 1, side**2, 8), grid=(side, side)) for side in (32, 64))
    assert many / few == pytest.approx(8, rel=0.1)


def test_tokens_that_are_no_image_and_impossible_sizes_are_refused():
    q, k, v = qkv(10)
    with pytest.raises(ValueError, match="SparseAttention needs the grid of patches"):
        SparseAttention()(q, k, v)
    with pytest.raises(ValueError, match=r"block \(0\) must be a positive whole number: None takes the columns"):
        SparseAttention(block=0)
    with pytest.raises(ValueError, match=r"stride \(-1\) must be a positive whole number"):
        SparseAttention(stride=-1)


# Top-k.


@pytest.mark.parametrize("k_best", [1, 2, 3, 7, 8])
def test_the_kept_keys_share_the_weight_by_softmax(k_best):
    inputs = q, k, _ = qkv(5, 7)
    order = (q @ k.mT).argsort(-1).argsort(-1)
    expected, weights = scaled_dot_product_attention(*inputs, mask=order >= 7 - k_best)
    assert_same_forward_and_backward(TopKAttention(k_best)(*inputs), expected, inputs)
    assert_close(TopKAttention(k_best).weights(q, k), weights, **EXACT)
    assert ((weights > 0).sum(-1) == min(k_best, 7)).all()


def test_keys_that_tie_with_the_kth_are_kept():
    k = torch.tensor([3.0, 1.0, 1.0, 0.0]).reshape(1, 1, 4, 1)
    weights = TopKAttention(2).weights(torch.ones(1, 1, 1, 1), k)
    assert (weights[0, 0, 0] > 0).tolist() == [True, True, True, False]
    assert weights[0, 0, 0, 1] == weights[0, 0, 0, 2]


@pytest.mark.parametrize("causal", [False, True])
def test_masked_keys_are_not_among_the_kept(causal):
    inputs = q, k, _ = qkv(7)
    mask = torch.rand(2, 1, 7, 7) > 0.5
    mask[0, :, 3] = False
    both = mask & torch.ones(7, 7, dtype=torch.bool).tril() if causal else mask.expand(2, 1, 7, 7)
    logits = (q @ k.mT).masked_fill(~both, -torch.inf)
    best = (logits.argsort(-1).argsort(-1) >= 7 - 2) & both
    expected, _ = scaled_dot_product_attention(*inputs, mask=best)
    assert_same_forward_and_backward(TopKAttention(2)(*inputs, mask=mask, causal=causal), expected, inputs)
    assert (expected[0, :, 3] == 0).all()


def test_keeping_zero_keys_is_refused():
    with pytest.raises(ValueError, match=r"k \(0\) must be a positive whole number"):
        TopKAttention(0)
