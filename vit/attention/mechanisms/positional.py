"""Attention by positions alone.

Letters in the einops patterns: b batch, h heads, n queries, m keys, d channels per head, y x rows and columns of the
patches that attend, v u those of the patches attended to, p r prefix tokens.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from torch import Tensor, nn

from vit.attention.functional import attention_logits
from vit.attention.mechanisms.grid import Grid, prefix_length
from vit.attention.mechanisms.mechanism import Mechanism
from vit.attention.qkv_checks import check_qkv


class PositionalAttention(Mechanism):
    """Attention by positions alone: the softmax of learned logits, the same for all images.

    Each head learns one logit for each offset between two patches: the position bias of Swin (Liu et al. 2021, eq. 4)
    without the products of queries and keys. Prefix tokens (class token, registers) share one logit for each place of
    the grid, and one for all prefix tokens. Patches have one logit for all prefix tokens. All logits start at 0, which
    is uniform attention. Queries and keys are projected but not used, so that the model has the same size as with
    softmax attention. For images of another size the logits are resized, as learned positions are.
    """

    rotated_parts: ClassVar[int] = 0

    def __init__(self, num_heads: int, grid_size: Grid) -> None:
        super().__init__()
        if grid_size is None:
            raise ValueError("positional attention learns the offsets of a grid: pass grid_size=(rows, columns)")
        self.patch_to_patch = nn.Parameter(torch.empty(num_heads, *_offsets(grid_size)))
        self.patch_to_prefix = nn.Parameter(torch.empty(num_heads))
        self.prefix_to_patch = nn.Parameter(torch.empty(num_heads, *grid_size))
        self.prefix_to_prefix = nn.Parameter(torch.empty(num_heads))
        self.init_weights()

    def init_weights(self) -> None:
        """Make all logits zero."""
        for logits in self.parameters():
            nn.init.zeros_(logits)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, grid: Grid | None = None) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, N, d), (B, H, N, e) -> (B, H, N, e)."""
        check_qkv(q, k, v)
        weights = self._logits(q, k, grid).softmax(dim=-1)
        return einsum(weights.to(v.dtype), v, "h n m, b h m d -> b h n d")

    def weights(self, q: Tensor, k: Tensor, *, grid: Grid | None = None) -> Tensor:
        """Compute the attention weights, equal for all images: (B, H, N, d), (B, H, N, d) -> (B, H, N, N)."""
        # The products are scaled by 0, but keep the weights in the autograd graph of the tokens. From this graph
        # vit.capture tells whether layers follow each other or lie side by side.
        return (attention_logits(q, k, scale=0.0) + self._logits(q, k, grid)).softmax(dim=-1).to(q.dtype)

    def _logits(self, q: Tensor, k: Tensor, grid: Grid | None) -> Tensor:
        """Lay the learned logits out for all pairs of tokens: (H, prefix + N, prefix + N)."""
        prefix = prefix_length("PositionalAttention", q, k, grid)
        by_offset = _resized(self.patch_to_patch, _offsets(grid))
        down, right = (_offset_indices(size, by_offset.device) for size in grid)
        among_patches = by_offset[:, rearrange(down, "y v -> y 1 v 1"), rearrange(right, "x u -> 1 x 1 u")]
        among_patches = rearrange(among_patches, "h y x v u -> h (y x) (v u)")
        to_prefix = repeat(self.patch_to_prefix, "h -> h n p", n=among_patches.shape[1], p=prefix)
        among_prefix = repeat(self.prefix_to_prefix, "h -> h p r", p=prefix, r=prefix)
        from_prefix = repeat(_resized(self.prefix_to_patch, grid), "h y x -> h p (y x)", p=prefix)
        rows = torch.cat([among_prefix, from_prefix], dim=-1), torch.cat([to_prefix, among_patches], dim=-1)
        return torch.cat(rows, dim=-2)


def _offsets(grid: Grid) -> Grid:
    """Return the number of offsets between two patches, down and to the right."""
    return 2 * grid[0] - 1, 2 * grid[1] - 1


def _offset_indices(size: int, device: torch.device) -> Tensor:
    """Return the index of the offset from each position of an axis (row) to each other (column): (size, size)."""
    positions = torch.arange(size, device=device)
    return positions - positions[:, None] + size - 1


def _resized(logits: Tensor, size: Grid) -> Tensor:
    """Resize a table of logits to another grid: (H, rows, columns) -> (H, *size)."""
    if tuple(logits.shape[1:]) == tuple(size):
        return logits
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.interpolate(wide[None], size=size, mode="bicubic", align_corners=False, antialias=True)[0]
