"""Positions: sine-cosine codes, rotary angles, and learned positions on another grid.

Letters in the einops patterns: h w rows and columns of the grid, y x rows and columns of the new grid, n positions,
d channels, i f frequencies, o positions of an axis and beyond its border.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from einops import einsum, pack, rearrange, repeat
from torch import Tensor

from vit.support.checks import check_choice

Grid = tuple[int, int]
Interpolation = Literal["bicubic", "bilinear", "transformers", "torchvision", "google", "dinov2"]
BEYOND = 2  # positions beyond the border that a cubic kernel reaches


def sinusoidal_positions(length: int, dim: int) -> Tensor:
    """Compute sine-cosine codes of the positions 0, 1, ... of a sequence: (length, dim).

    A code has first the sines, then the cosines, of ``position * frequency_i``. ``frequency_i = 10000 ** (-i / n)`` for
    i < n = dim / 2 (Vaswani et al. 2017, sec. 3.5). A shift of s positions rotates each pair (sin, cos) by the angle
    ``s * frequency_i``. This is the same linear map at all positions.

    Raises:
        ValueError: If ``dim`` is odd.
    """
    if dim % 2:
        raise ValueError(f"dim ({dim}) must be even for pairs of sine and cosine: take {dim + 1}")
    frequencies = 10000.0 ** -(torch.arange(dim // 2) / (dim // 2))
    angles = einsum(torch.arange(float(length)), frequencies, "n, i -> n i")
    return pack([angles.sin(), angles.cos()], "n *")[0]


def sinusoidal_positions_2d(grid_size: tuple[int, int], dim: int) -> Tensor:
    """Compute sine-cosine codes of the positions on a grid, row by row: (rows * columns, dim).

    The first half of the channels encodes the row, the second half the column. In MAE (He et al. 2022), the column
    comes first.

    Raises:
        ValueError: If ``dim`` is not a multiple of 4.
    """
    if dim % 4:
        raise ValueError(
            f"embed_dim ({dim}) must be a multiple of 4 for sine-cosine positions: take {dim - dim % 4 + 4}, or let "
            "learned positions start as noise (pos_embed_init 'normal')"
        )
    rows, columns = grid_size
    row_codes = repeat(sinusoidal_positions(rows, dim // 2), "row d -> (row column) d", column=columns)
    column_codes = repeat(sinusoidal_positions(columns, dim // 2), "column d -> (row column) d", row=rows)
    return pack([row_codes, column_codes], "n *")[0]


def rotary_angles(positions: Tensor, head_dim: int, theta: float = 10_000.0) -> Tensor:
    """Compute the rotary angles of positions in a sequence: (N,) -> (N, d / 2).

    ``angle[n, i] = n / theta^(2 i / d)`` (Su et al. 2021, RoFormer, eq. 15). The first pair of channels turns by one
    radian per position. The last pairs hardly turn.

    >>> rotary_angles(torch.tensor([0, 1]), head_dim=4, theta=100.0)
    tensor([[0.0000, 0.0000],
            [1.0000, 0.1000]])

    Raises:
        ValueError: If ``head_dim`` is odd.
    """
    if head_dim % 2:
        raise ValueError(f"head_dim ({head_dim}) must be even for rotary positions, which turn pairs of channels")
    positions = positions if positions.dtype == torch.float64 else positions.float()  # bfloat16 cannot represent 257
    pairs = torch.arange(0, head_dim, 2, device=positions.device, dtype=positions.dtype)
    return einsum(positions, theta ** -(pairs / head_dim), "n, d -> n d")


def cubic(x: Tensor, a: float) -> Tensor:
    """Evaluate the kernel of cubic convolution at distances ``x`` (Keys 1981, eq. 4)."""
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return near * (x <= 1) + far * ((x > 1) & (x < 2))


def triangle(x: Tensor) -> Tensor:
    """Evaluate the kernel of linear interpolation at distances ``x``."""
    return (1 - x.abs()).clamp(min=0)


@dataclass(frozen=True)
class Resizing:
    """A way to resize an axis of positions."""

    kernel: Callable[[Tensor], Tensor]  # weight of an old position by its distance from the new position
    antialias: bool = False  # whether the kernel widens if the grid shrinks
    corners: bool = False  # whether the first and the last position stay in place, instead of the borders of the grid
    offset: float = 0.0  # added to the new size to compute the scale, unless the grid stays the same


# How each library resizes the positions of its models. The first two are timm's.
RESIZINGS = {
    "bicubic": Resizing(partial(cubic, a=-0.5), antialias=True),
    "bilinear": Resizing(triangle, antialias=True),
    "transformers": Resizing(partial(cubic, a=-0.75)),
    "torchvision": Resizing(partial(cubic, a=-0.75), corners=True),
    "google": Resizing(triangle, corners=True),
    "dinov2": Resizing(partial(cubic, a=-0.75), offset=0.1),
}


def resize_positions(
    pos_embed: Tensor, old_grid: Grid, new_grid: Grid, interpolation: Interpolation = "bicubic"
) -> Tensor:
    """Resize learned positions to another grid: (1, prefix + old N, D) -> (1, prefix + new N, D).

    The positions of prefix tokens (class token, registers) come first and do not change. One matrix resizes rows, and
    another resizes columns. Programs of ``torch.export`` and ONNX compute these matrices for any size. If the grids are
    equal, the positions do not change.

    >>> positions = torch.randn(1, 1 + 4 * 4, 8)
    >>> resize_positions(positions, (4, 4), (6, 5)).shape
    torch.Size([1, 31, 8])

    Args:
        pos_embed: The learned positions.
        old_grid: Rows and columns of these positions.
        new_grid: Rows and columns of patches.
        interpolation: A key of ``RESIZINGS``. "bicubic" and "bilinear" are antialiased, as in timm. "transformers",
            "torchvision", "google" and "dinov2" resize as these libraries do.

    Raises:
        ValueError: If the interpolation is unknown.
    """
    check_choice("pos_embed_interpolation", interpolation, get_args(Interpolation))
    # Exported programs run at any size, also at that of the training. So they have no branch on sizes.
    if not torch.compiler.is_exporting() and tuple(old_grid) == tuple(new_grid):
        return pos_embed
    prefix = pos_embed.shape[1] - old_grid[0] * old_grid[1]
    wide = torch.promote_types(pos_embed.dtype, torch.float32)
    grid = rearrange(pos_embed[:, prefix:].to(wide), "1 (h w) d -> h w d", h=old_grid[0])
    resizing = RESIZINGS[interpolation]
    if resizing.offset:  # times 0 if the grid stays the same: exported programs have no branch on sizes
        changes = (torch.sym_max(new - old, old - new) for old, new in zip(old_grid, new_grid, strict=True))
        resizing = replace(resizing, offset=resizing.offset * torch.sym_min(sum(changes), 1))
    sizes = zip(old_grid, new_grid, strict=True)
    rows, columns = (resizing_matrix(old, new, resizing, grid) for old, new in sizes)
    with torch.autocast("cpu" if pos_embed.is_meta else pos_embed.device.type, enabled=False):
        resized = einsum(rows, columns, grid, "y h, x w, h w d -> y x d")
    return pack([pos_embed[:, :prefix], rearrange(resized.to(pos_embed.dtype), "y x d -> 1 (y x) d")], "b * d")[0]


def resizing_matrix(old: int, new: int, resizing: Resizing, like: Tensor) -> Tensor:
    """Return the weight of each old position of an axis in each new position: (new, old). Rows sum to one."""
    places = {"device": like.device, "dtype": like.dtype}
    steps = torch.arange(new, **places)
    if resizing.corners:
        centers = steps * ((old - 1) / torch.sym_max(new - 1, 1))
    else:
        centers = (steps + 0.5) * (old / (new + resizing.offset)) - 0.5
    if resizing.antialias:
        distances = centers[:, None] - torch.arange(old, **places)
        weights = resizing.kernel(distances / torch.sym_max(old / new, 1.0))
        return weights / weights.sum(dim=1, keepdim=True)
    # Beyond the border, the position at the border is repeated.
    reached = torch.arange(-BEYOND, old + BEYOND, device=like.device)
    repeated = F.one_hot(reached.clamp(0, old - 1), old).to(like.dtype)
    return einsum(resizing.kernel(centers[:, None] - reached), repeated, "y o, o h -> y h")


def axial_angles(grid: Grid, trained_grid: Grid, head_dim: int, like: Tensor) -> Tensor:
    """Compute rotary angles of the patches of a grid, as in DINOv3: (rows * columns, d / 2).

    The first half of the channel pairs turns with the row, the second half with the column. Rows lie evenly in [-1, 1]
    at any size of the grid, and so do columns. Frequency f of F is ``2 pi 100^(-f / F)`` (Siméoni et al. 2025). Angles
    are on the device of ``like``, in its precision, but at least float32. ``trained_grid`` is unused: all functions in
    ``ROTARY`` have the same signature.
    """
    rows, columns = (2 * (_places(size, like) + 0.5) / size - 1 for size in grid)
    return _on_axes(rows, columns, 2 * math.pi * _frequencies(head_dim, 100.0, rows))


def indexed_axial_angles(grid: Grid, trained_grid: Grid, head_dim: int, like: Tensor) -> Tensor:
    """Compute rotary angles of the patches of a grid, as in EVA-02: (rows * columns, d / 2).

    Rows and columns count from 0 and are scaled to the training's grid. Frequency f of F is ``10,000^(-f / F)`` (Fang
    et al. 2023). The rest is as in ``axial_angles``.
    """
    rows, columns = (_places(size, like) * (trained / size) for size, trained in zip(grid, trained_grid, strict=True))
    return _on_axes(rows, columns, _frequencies(head_dim, 10_000.0, rows))


ROTARY = {"rope": axial_angles, "rope_eva": indexed_axial_angles}


def check_axial(width: int, num_heads: int, name: str = "embed_dim", parts: int = 1) -> None:
    """Raise a ValueError if the width of a head is not a multiple of ``4 * parts``, as rotary positions of a grid need.

    ``name`` is the argument that sets the width of all heads. ``parts`` is the number of parts of a head that turn
    separately.
    """
    multiple = 4 * parts
    if width // num_heads % multiple:
        enough = multiple * max(width // num_heads // multiple, 1)
        halves = "" if parts == 1 else f", in each of {parts} parts of a head"
        raise ValueError(
            f"rotary positions turn pairs of channels by row and by column{halves}, so the width of a head ({width} / "
            f"{num_heads}) must be a multiple of {multiple}: take {name} {enough * num_heads}"
        )


def _places(size: int, like: Tensor) -> Tensor:
    return torch.arange(size, device=like.device, dtype=torch.promote_types(like.dtype, torch.float32))


def _frequencies(head_dim: int, theta: float, like: Tensor) -> Tensor:
    return theta ** -(torch.arange(0, head_dim, 4, device=like.device, dtype=like.dtype) / head_dim)


def _on_axes(rows: Tensor, columns: Tensor, frequencies: Tensor) -> Tensor:
    by_row, by_column = (einsum(places, frequencies, "n, f -> n f") for places in (rows, columns))
    by_row = repeat(by_row, "y f -> (y x) f", x=columns.shape[0])
    by_column = repeat(by_column, "x f -> (y x) f", y=rows.shape[0])
    return pack([by_row, by_column], "n *")[0]
