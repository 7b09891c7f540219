"""Windows and neighbourhoods, against masks written out position by position."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.architectures import EXACT
from tests.attention.inputs import assert_same_forward_and_backward, flop_of, qkv
from vit.attention import scaled_dot_product_attention
from vit.attention.mechanisms import NeighborhoodAttention, WindowAttention

SIDES = st.sampled_from([1, 2, 3, 5, 7, 8, 11, 13, 17])


def same_window(a, b, size, window, shift):
    """Whether two positions of an axis share a window, by cutting it at shift, shift + window, ..."""
    if window >= size:
        return True
    cuts = [cut for cut in range(shift - window, size + window, window) if cut > 0]
    return sum(cut <= a for cut in cuts) == sum(cut <= b for cut in cuts)


def is_neighbor(query, key, size, kernel):
    """Whether a key is among the ``kernel`` positions of an axis that are nearest to the query."""
    first = query - kernel // 2
    if first + kernel > size:
        first = size - kernel
    first = max(first, 0)
    return first <= key < first + kernel


def pattern(grid, prefix, is_seen):
    """The mask of all tokens: patches attend where both axes agree; prefix tokens attend and are attended to."""
    rows, columns = (torch.tensor([[is_seen(a, b, n) for b in range(n)] for a in range(n)]) for n in grid)
    patches = (rows[:, None, :, None] & columns[None, :, None, :]).reshape(2 * [grid[0] * grid[1]])
    return F.pad(patches, (prefix, 0, prefix, 0), value=True)


def assert_follows(mechanism, grid, prefix, is_seen):
    inputs = q, k, v = qkv(prefix + grid[0] * grid[1])
    expected, weights = scaled_dot_product_attention(q, k, v, mask=pattern(grid, prefix, is_seen))
    assert_same_forward_and_backward(mechanism(q, k, v, grid=grid), expected, inputs)
    assert_close(mechanism.weights(q, k, grid=grid), weights, **EXACT)


def test_windows_of_a_grid_are_not_causal():
    assert_follows(WindowAttention(3), (5, 7), 1, lambda a, b, size: same_window(a, b, size, 3, 0))


@settings(max_examples=40, deadline=None)
@given(rows=SIDES, columns=SIDES, prefix=st.integers(0, 3), window=st.integers(1, 9), block_index=st.integers(0, 3))
def test_a_patch_attends_to_its_window_which_every_other_block_shifts_by_half(
    rows, columns, prefix, window, block_index
):
    shift = window // 2 if block_index in (1, 3) else 0
    assert_follows(
        WindowAttention(window, block_index=block_index),
        (rows, columns),
        prefix,
        lambda a, b, size: same_window(a, b, size, window, shift),
    )


@settings(max_examples=40, deadline=None)
@given(rows=SIDES, columns=SIDES, prefix=st.integers(0, 3), kernel=st.sampled_from([1, 3, 5, 7, 11]))
def test_a_patch_attends_to_its_neighborhood_moved_inwards_at_the_border(rows, columns, prefix, kernel):
    assert_follows(
        NeighborhoodAttention(kernel), (rows, columns), prefix, lambda a, b, size: is_neighbor(a, b, size, kernel)
    )


@pytest.mark.parametrize(
    "mechanism",
    [WindowAttention(4), WindowAttention(4, block_index=1), WindowAttention(7), NeighborhoodAttention(5)],
)
@pytest.mark.parametrize("prefix", [0, 1])
def test_the_cost_grows_with_the_number_of_patches(mechanism, prefix):
    small, medium, large = (  # in bfloat16 the explicit form runs, which is counted
        flop_of(mechanism, *torch.randn(3, 1, 1, prefix + side**2, 8, dtype=torch.bfloat16), grid=(side, side))
        for side in (32, 64, 128)
    )
    assert medium / small == pytest.approx(4, rel=0.15)
    assert large / medium == pytest.approx(4, rel=0.15)


@settings(max_examples=40, deadline=None)
@given(tokens=SIDES, before=st.integers(0, 20), window=st.integers(1, 20), block_index=st.integers(0, 1))
def test_causal_a_token_attends_to_itself_and_the_tokens_before_it_in_its_window(tokens, before, window, block_index):
    q, k, v = inputs = qkv(tokens, tokens + before)
    far = (torch.arange(tokens) + before)[:, None] - torch.arange(tokens + before)
    expected, weights = scaled_dot_product_attention(q, k, v, mask=(far >= 0) & (far < window))
    mechanism = WindowAttention(window, block_index)
    assert_same_forward_and_backward(mechanism(q, k, v, causal=True), expected, inputs)
    assert_close(mechanism.weights(q, k, causal=True), weights, **EXACT)


def test_causal_windows_cost_as_much_as_their_tokens_and_no_more():
    q, k, v = torch.randn(3, 1, 1, 2048, 8, dtype=torch.bfloat16)
    half = [x[..., :1024, :] for x in (q, k, v)]
    whole = flop_of(WindowAttention(16), q, k, v, causal=True)
    assert whole == 2 * flop_of(WindowAttention(16), *half, causal=True) == 4 * 2048 * 31 * 8  # 2 products, 31 keys
    assert flop_of(WindowAttention(16), q[..., -1:, :], k, v, causal=True) == 4 * 16 * 8


def test_only_windows_across_the_border_need_a_mask():
    assert WindowAttention(4).tiles(8, torch.device("cpu")).visible is None
    assert WindowAttention(4, block_index=1).tiles(8, torch.device("cpu")).visible is not None


@pytest.mark.parametrize("mechanism", [WindowAttention(3), NeighborhoodAttention(3)])
def test_tokens_that_are_no_image_are_refused(mechanism):
    q, k, v = qkv(10)
    name = type(mechanism).__name__
    with pytest.raises(ValueError, match=rf"{name} needs the grid of patches: pass grid=\(rows, columns\)"):
        mechanism(q, k, v)
    with pytest.raises(ValueError, match=r"grid \(3, 4\) has 12 patches, but there are 10 tokens"):
        mechanism(q, k, v, grid=(3, 4))
    with pytest.raises(ValueError, match=rf"{name} got 10 queries and 9 keys, but is self-attention"):
        mechanism(q, k[:, :, 1:], v[:, :, 1:], grid=(3, 3))


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match=r"window \(0\) must be a positive whole number"):
        WindowAttention(0)
    with pytest.raises(ValueError, match=r"kernel \(4\) must be odd and positive: take 3 or 5"):
        NeighborhoodAttention(4)
