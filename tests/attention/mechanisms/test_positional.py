"""Attention by positions alone, against logits laid out pair by pair."""

import pytest
import torch
from torch.testing import assert_close

import vit
from tests.architectures import EXACT
from tests.attention.inputs import qkv
from vit.attention.mechanisms import PositionalAttention, UniformAttention
from vit.capture import capture_attention, examine

B, H, D = 2, 3, 11


def randomised(grid):
    attention = PositionalAttention(H, grid).double()
    for logits in attention.parameters():
        torch.nn.init.normal_(logits)
    return attention


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize("grid", [(3, 5), (1, 7), (1, 1)])
def test_each_pair_of_tokens_has_the_logit_of_its_offset_or_of_its_kind(grid, prefix):
    attention = randomised(grid)
    places = [(y, x) for y in range(grid[0]) for x in range(grid[1])]
    tokens = [None] * prefix + places
    logits = torch.empty(H, len(tokens), len(tokens)).double()
    for n, query in enumerate(tokens):
        for m, key in enumerate(tokens):
            if query is None:
                to_patch, to_prefix = attention.prefix_to_patch, attention.prefix_to_prefix
                logits[:, n, m] = to_prefix if key is None else to_patch[(slice(None), *key)]
            elif key is None:
                logits[:, n, m] = attention.patch_to_prefix
            else:
                down, right = (there - here + side - 1 for here, there, side in zip(query, key, grid, strict=True))
                logits[:, n, m] = attention.patch_to_patch[:, down, right]
    q, k, v = qkv(len(tokens))
    weights = logits.softmax(dim=-1).expand(B, -1, -1, -1)
    assert_close(attention.weights(q, k, grid=grid), weights, **EXACT)
    assert_close(attention(q, k, v, grid=grid), weights @ v, **EXACT)


def test_it_starts_as_uniform_attention():
    q, k, v = qkv(2 + 15)
    assert_close(PositionalAttention(H, (3, 5)).double()(q, k, v, grid=(3, 5)), UniformAttention()(q, k, v), **EXACT)


def test_on_a_larger_grid_a_head_that_looks_at_itself_and_its_neighbours_still_does():
    attention = PositionalAttention(1, (5, 5)).double()
    down, right = torch.meshgrid(torch.arange(-4.0, 5), torch.arange(-4.0, 5), indexing="ij")
    attention.patch_to_patch.data[0] = -(down.square() + right.square())
    q, k = torch.zeros(2, 1, 1, 81, D).double()
    weights = attention.weights(q, k, grid=(9, 9))[0, 0].unflatten(1, (9, 9))
    assert (weights.flatten(1).argmax(dim=1) == torch.arange(81)).all()
    middle = weights[40]
    assert_close(middle, middle.flip(0), **EXACT)
    assert_close(middle, middle.T, **EXACT)
    # Twice as many patches along a side: the neighbour at distance 2 has about the weight of that at distance 1 before.
    small = attention.weights(q[:, :, :25], k[:, :, :25], grid=(5, 5))[0, 0, 12].unflatten(0, (5, 5))
    assert (middle[4, 6] / middle[4, 4]).item() == pytest.approx((small[2, 3] / small[2, 2]).item(), rel=0.3)


def test_constant_logits_stay_so_on_every_grid():
    attention = PositionalAttention(H, (3, 5)).double()
    torch.nn.init.constant_(attention.patch_to_patch, 2.0)
    torch.nn.init.constant_(attention.prefix_to_patch, 2.0)
    for grid in ((2, 3), (7, 11)):
        q, k, _ = qkv(1 + grid[0] * grid[1])
        logits = attention._logits(q, k, grid)
        patches = torch.full((H, grid[0] * grid[1], grid[0] * grid[1]), 2.0).double()
        assert_close(logits[:, 1:, 1:], patches, **EXACT)
        assert_close(logits[:, 0, 1:], patches[:, 0], **EXACT)


@pytest.mark.parametrize("attention", ["positional", "uniform"])
def test_the_layers_of_a_model_are_captured_in_a_row(attention):
    model = vit.VisionTransformer((6, 10), 2, embed_dim=12, depth=2, num_heads=3, attention=attention).eval()
    images = torch.randn(3, 3, 6, 10)
    assert examine(model, images).grid == (3, 5)
    for block, captured in zip(model.blocks, capture_attention(model, images), strict=True):
        tokens = torch.randn(3, 16, 12)
        assert_close(captured, block.attn.weights(tokens, grid=(3, 5)))


def test_a_model_learns_its_logits():
    model = vit.VisionTransformer(
        (6, 10), 2, embed_dim=12, depth=2, num_heads=3, attention="positional", num_registers=1
    )
    model(torch.randn(3, 3, 6, 10)).square().sum().backward()
    assert all((logits.grad != 0).any() for logits in model.blocks[0].attn.mechanism.parameters())


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match="positional attention learns the offsets of a grid: pass grid_size="):
        PositionalAttention(H, None)
    q, k, v = qkv(10)
    with pytest.raises(ValueError, match="PositionalAttention needs the grid of patches"):
        PositionalAttention(H, (3, 3)).double()(q, k, v)
