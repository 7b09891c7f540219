"""Attention of each patch to the patches around it, in time and memory that grow with N.

Both mechanisms cut the grid into tiles of queries, and give each tile the block of keys around it. Each tile is one
small dense attention, which is faster than gathering the neighbours of each query; a mask makes it exact. Prefix tokens
(class token, registers) attend to all tokens, and all tokens attend to them.

Letters in the einops patterns: b batch, h heads, d channels per head, r c rows and columns of tiles, p q those of
the queries in a tile, y x those of the keys in its block, t tiles, n queries, m keys.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

from vit.attention.functional import attention_weights
from vit.attention.masks import causal_mask
from vit.attention.mechanisms.grid import Grid, check_odd, prefix_length, with_prefix
from vit.attention.mechanisms.mechanism import Mechanism
from vit.attention.mechanisms.softmax_kernels import attend
from vit.attention.qkv_checks import check_qkv
from vit.support.checks import check_positive_int


class Tiles(NamedTuple):
    """One axis of the grid, cut into tiles."""

    padding: tuple[int, int]  # positions before the first and after the last query that fill the tiles
    tile: int  # queries in a tile
    keys: Tensor  # (tiles, block): the positions of the keys of each tile
    visible: Tensor | None  # (tiles, tile, block): which of these keys a query attends to; None means all


class LocalAttention(Mechanism, ABC):
    """The base of window and neighbourhood attention, which define the tiles and the mask of one axis of the grid."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, grid: Grid | None = None) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, N, d), (B, H, N, e) -> (B, H, N, e)."""
        prefix = prefix_length(type(self).__name__, q, k, grid)
        rows, columns = (self.tiles(size, q.device) for size in grid)
        return with_prefix(_attend_in_tiles(q, k, v, prefix, grid, rows, columns), q, k, v, prefix)

    def weights(self, q: Tensor, k: Tensor, *, grid: Grid | None = None) -> Tensor:
        """Compute the attention weights, zero for distant patches: (B, H, N, d), (B, H, N, d) -> (B, H, N, N)."""
        prefix = prefix_length(type(self).__name__, q, k, grid)
        rows, columns = (self.visible(size, q.device) for size in grid)
        in_both = rearrange(rows, "p y -> p 1 y 1") & rearrange(columns, "q x -> 1 q 1 x")
        mask = rearrange(in_both, "p q y x -> (p q) (y x)")
        return attention_weights(q, k, mask=F.pad(mask, (prefix, 0, prefix, 0), value=True))

    @abstractmethod
    def tiles(self, size: int, device: torch.device) -> Tiles:
        """Cut an axis of ``size`` positions into tiles."""

    @abstractmethod
    def visible(self, size: int, device: torch.device) -> Tensor:
        """Return which positions of an axis (columns) each position (row) attends to: (size, size), boolean."""


class WindowAttention(LocalAttention):
    """Attention of each patch to the patches in its window (Liu et al. 2021, Swin, without its position bias).

    The grid is cut into windows of ``window`` x ``window`` patches. Every other block shifts the cuts by half a window,
    so that information passes between windows. A side of the grid no longer than the window is not cut.

    If causal, the tokens are a sequence without a grid: each attends to itself and the ``window - 1`` tokens before it
    (Beltagy et al. 2020), so that information moves by ``window - 1`` tokens per block.

    Args:
        window: Patches along a side of a window, or tokens of a sequence that a token attends to.
    """

    def __init__(self, window: int = 4, block_index: int = 0) -> None:
        super().__init__()
        check_positive_int("window", window)
        self.window = window
        self.shift = window // 2 if block_index % 2 else 0

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, grid: Grid | None = None) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, e) -> (B, H, N, e)."""
        return _attend_to_last(q, k, v, self.window) if causal else super().forward(q, k, v, grid=grid)

    def weights(self, q: Tensor, k: Tensor, *, causal: bool = False, grid: Grid | None = None) -> Tensor:
        """Compute the attention weights, zero outside the window: (B, H, N, d), (B, H, M, d) -> (B, H, N, M)."""
        if not causal:
            return super().weights(q, k, grid=grid)
        n, m = q.shape[-2], k.shape[-2]
        return attention_weights(q, k, mask=causal_mask(n, m, q.device).triu(m - n - self.window + 1))

    def tiles(self, size: int, device: torch.device) -> Tiles:
        """Make each window a tile, which attends to itself."""
        if size <= self.window:
            return Tiles((0, 0), size, torch.arange(size, device=device)[None], None)
        before = (self.window - self.shift) % self.window
        after = -(before + size) % self.window
        keys = rearrange(torch.arange(-before, size + after, device=device), "(t p) -> t p", p=self.window)
        inside = (keys >= 0) & (keys < size)
        visible = repeat(inside, "t y -> t p y", p=self.window) if before or after else None
        return Tiles((before, after), self.window, keys.clamp(0, size - 1), visible)

    def visible(self, size: int, device: torch.device) -> Tensor:
        """Return which positions share a window: (size, size)."""
        if size <= self.window:
            return torch.ones(size, size, dtype=torch.bool, device=device)
        window = (torch.arange(size, device=device) - self.shift).div(self.window, rounding_mode="floor")
        return window[:, None] == window


class NeighborhoodAttention(LocalAttention):
    """Attention of each patch to the ``kernel`` x ``kernel`` patches around it (Hassani et al. 2023, NAT).

    At the border the neighbourhood moves inwards, so that every patch attends to equally many patches.

    Args:
        kernel: Patches along a side of a neighbourhood, an odd number.
    """

    # Queries along a side of a tile. Small tiles read more keys twice, large ones mask more keys. Of 4, 8 and 16,
    # measured on a CPU with kernels of 3, 7 and 13 and grids of 8 to 64 a side, 8 is the fastest for kernels of 7, and
    # takes at most twice the time of the fastest otherwise.
    TILE = 8

    def __init__(self, kernel: int = 7) -> None:
        super().__init__()
        check_odd("kernel", kernel)
        self.kernel = kernel

    def tiles(self, size: int, device: torch.device) -> Tiles:
        """Cut the queries into tiles, each with the keys from the first query's to the last query's neighbours."""
        tile = min(self.TILE, size)
        after = -size % tile
        queries = rearrange(torch.arange(size + after, device=device), "(t p) -> t p", p=tile)
        block = min(size, tile + self.kernel - 1)
        first_key = (queries[:, :1] - self.kernel // 2).clamp(0, size - block)
        keys = first_key + torch.arange(block, device=device)
        visible = self._are_neighbours(queries[..., None], keys[:, None], size) if self.kernel < size else None
        return Tiles((0, after), tile, keys, visible)

    def visible(self, size: int, device: torch.device) -> Tensor:
        """Return which positions (columns) are in the neighbourhood of each position (row): (size, size)."""
        positions = torch.arange(size, device=device)
        return self._are_neighbours(positions[:, None], positions, size)

    def _are_neighbours(self, queries: Tensor, keys: Tensor, size: int) -> Tensor:
        first = (queries - self.kernel // 2).clamp(0, max(size - self.kernel, 0))
        return (keys >= first) & (keys < first + self.kernel)


def _attend_in_tiles(q: Tensor, k: Tensor, v: Tensor, prefix: int, grid: Grid, rows: Tiles, columns: Tiles) -> Tensor:
    heads, (height, width) = q.shape[1], grid
    queries = rearrange(q[..., prefix:, :], "b h (y x) d -> b h y x d", y=height)
    queries = F.pad(queries, (0, 0, *columns.padding, *rows.padding))
    queries = rearrange(queries, "b h (r p) (c q) d -> b (h r c) (p q) d", p=rows.tile, q=columns.tile)
    keys, values = (_blocks(x, prefix, height, rows.keys, columns.keys) for x in (k, v))
    output = attend(queries, keys, values, mask=_tile_mask(rows, columns, prefix, heads))
    output = rearrange(
        output, "b (h r c) (p q) d -> b h (r p) (c q) d", h=heads, r=len(rows.keys), p=rows.tile, q=columns.tile
    )
    top, left = rows.padding[0], columns.padding[0]
    return rearrange(output[:, :, top : top + height, left : left + width], "b h y x d -> b h (y x) d")


def _blocks(x: Tensor, prefix: int, height: int, rows: Tensor, columns: Tensor) -> Tensor:
    """Gather the keys or values of each tile, prefix first: (B, H, N, d) -> (B, H * tiles, prefix + block, d)."""
    patches = rearrange(x[..., prefix:, :], "b h (y x) d -> b h y x d", y=height)
    patches = patches.index_select(2, rearrange(rows, "r y -> (r y)"))
    patches = patches.index_select(3, rearrange(columns, "c x -> (c x)"))
    blocks = rearrange(patches, "b h (r y) (c x) d -> b (h r c) (y x) d", y=rows.shape[1], x=columns.shape[1])
    if not prefix:
        return blocks
    return torch.cat([repeat(x[..., :prefix, :], "b h m d -> b (h t) m d", t=len(rows) * len(columns)), blocks], dim=-2)


def _tile_mask(rows: Tiles, columns: Tiles, prefix: int, heads: int) -> Tensor | None:
    """Return the mask of the keys in each tile: (1, H * tiles, queries, prefix + block); None means no mask."""
    if rows.visible is None and columns.visible is None:
        return None
    by_row, by_column = (
        repeat(tiles.keys >= 0, "t m -> t n m", n=tiles.tile) if tiles.visible is None else tiles.visible
        for tiles in (rows, columns)
    )
    in_both = rearrange(by_row, "r p y -> r 1 p 1 y 1") & rearrange(by_column, "c q x -> 1 c 1 q 1 x")
    mask = rearrange(in_both, "r c p q y x -> (r c) (p q) (y x)")
    return repeat(F.pad(mask, (prefix, 0), value=True), "t n m -> 1 (h t) n m", h=heads)


def _attend_to_last(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Compute the output of the last N of M tokens, each from itself and the ``window - 1`` tokens before it.

    A tile has ``window`` queries, or all of them, and the keys from the first one that its first query sees.
    """
    check_qkv(q, k, v)
    heads, n, m = q.shape[1], q.shape[-2], k.shape[-2]
    window = max(1, min(window, m))
    tile = max(1, min(window, n))
    filling = -n % tile
    padding = window - 1 - (m - n), filling  # a negative one leaves out keys that no query sees
    first = rearrange(torch.arange(0, n + filling, tile, device=q.device), "t -> t 1")
    places = first + torch.arange(tile + window - 1, device=q.device)  # of the padded keys
    queries = rearrange(F.pad(q, (0, 0, 0, filling)), "b h (t n) d -> b (h t) n d", n=tile)
    keys, values = (rearrange(F.pad(x, (0, 0, *padding))[..., places, :], "b h t m d -> b (h t) m d") for x in (k, v))
    seen = causal_mask(tile, tile + window - 1, q.device).triu()  # query i: the places i to i + window - 1
    visible = seen & rearrange(places >= padding[0], "t m -> t 1 m")
    output = attend(queries, keys, values, mask=repeat(visible, "t n m -> 1 (h t) n m", h=heads))
    return rearrange(output, "b (h t) n d -> b h (t n) d", h=heads)[..., :n, :]
