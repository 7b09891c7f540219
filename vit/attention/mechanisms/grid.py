"""What mechanisms on images share: the grid of patches, and the prefix tokens before it (class token, registers)."""

import torch
from torch import Tensor

from vit.attention.mechanisms.softmax_kernels import attend

Grid = tuple[int, int]  # rows and columns of patches


def prefix_length(mechanism: str, q: Tensor, k: Tensor, grid: Grid | None) -> int:
    """Return the number of tokens before the patches, for self-attention over an image.

    Raises:
        ValueError: If the grid is missing or holds more patches than there are tokens, or queries and keys differ in
            number.
    """
    if grid is None:
        raise ValueError(f"{mechanism} needs the grid of patches: pass grid=(rows, columns)")
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"{mechanism} got {q.shape[-2]} queries and {k.shape[-2]} keys, but is self-attention over the tokens of "
            "an image: use 'softmax' for cross-attention"
        )
    prefix = q.shape[-2] - grid[0] * grid[1]
    if prefix < 0:
        raise ValueError(
            f"grid {tuple(grid)} has {grid[0] * grid[1]} patches, but there are {q.shape[-2]} tokens: pass the rows "
            "and columns of these tokens"
        )
    return prefix


def with_prefix(patches: Tensor, q: Tensor, k: Tensor, v: Tensor, prefix: int) -> Tensor:
    """Put the output of the prefix tokens, which attend to all tokens, before that of the patches."""
    return torch.cat([attend(q[..., :prefix, :], k, v), patches], dim=-2) if prefix else patches


def check_odd(name: str, value: int) -> None:
    """Raise a ValueError if the side of a neighbourhood is not odd: it would have no middle patch."""
    if value < 1 or value % 2 == 0:
        raise ValueError(f"{name} ({value}) must be odd and positive: take {max(value - 1, 1)} or {value + 1}")
