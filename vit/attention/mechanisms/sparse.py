"""Attention of each token to a few others: in a fixed pattern, or to those that score best.

Letters in the einops patterns: b batch, h heads, d channels per head, g groups of tokens that see each other, l tokens
of a group, n queries, m keys.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor

from vit.attention.functional import attention_logits, attention_weights, check_qkv, mask_logits, softmax_or_zeros
from vit.attention.mechanisms.base import Mechanism
from vit.attention.mechanisms.local import Grid, prefix_length
from vit.attention.mechanisms.softmax import attend


class SparseAttention(Mechanism):
    """Each patch attends to its block of patches, and to every ``stride``-th one (Child et al. 2019, strided).

    Counting the patches row by row, patch i sees patch j if ``i // block == j // block`` or ``i % stride ==
    j % stride``. Both are as long as a row of the grid by default, so that a patch sees its row and its column: any
    patch reaches any other in two steps, with about ``2 sqrt(N)`` keys a query instead of N. A ``stride`` of 1 is full
    attention. Prefix tokens attend to all and are attended by all.

    Args:
        block: Patches of a block; None takes the columns of the grid.
        stride: Distance between the patches seen beyond the block; None takes the columns of the grid.
    """

    def __init__(self, block: int | None = None, stride: int | None = None) -> None:
        super().__init__()
        for name, value in (("block", block), ("stride", stride)):
            if value is not None and value < 1:
                raise ValueError(f"{name} ({value}) must be at least 1, or None for the columns of the grid")
        self.block = block
        self.stride = stride

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, grid: Grid | None = None) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, N, d), (B, H, N, e) -> (B, H, N, e)."""
        check_qkv(q, k, v)
        prefix = prefix_length("SparseAttention", q, k, grid)
        patches = _attend_in_groups(q, k, v, prefix, self.block or grid[1], self.stride or grid[1])
        if not prefix:
            return patches
        return torch.cat([attend(q[..., :prefix, :], k, v), patches], dim=-2)

    def weights(self, q: Tensor, k: Tensor, *, grid: Grid | None = None) -> Tensor:
        """Attention of every query over every key, zero outside the pattern: (B, H, N, d) twice -> (B, H, N, N)."""
        prefix = prefix_length("SparseAttention", q, k, grid)
        block, stride = self.block or grid[1], self.stride or grid[1]
        j = torch.arange(grid[0] * grid[1], device=q.device)
        i = j[:, None]
        mask = (i // block == j // block) | (i % stride == j % stride)
        return attention_weights(q, k, mask=F.pad(mask, (prefix, 0, prefix, 0), value=True))


class TopKAttention(Mechanism):
    """Each query attends to the ``k`` keys that score best (Zhao et al. 2019; Gupta et al. 2021).

    Keys that score the same as the k-th are kept as well, so that the order of the keys does not matter. All scores are
    computed, so time and memory stay those of the explicit form; what it saves is noise.

    Args:
        k: Keys each query keeps.
    """

    independent_queries: ClassVar[bool] = True

    def __init__(self, k: int = 8) -> None:
        super().__init__()
        if k < 1:
            raise ValueError(f"k ({k}) must be at least 1")
        self.k = k

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, e) -> (B, H, N, e)."""
        check_qkv(q, k, v)
        return einsum(self.weights(q, k, mask=mask, causal=causal), v, "b h n m, b h m d -> b h n d")

    def weights(self, q: Tensor, k: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Attention of every query over every key, zero but for the best: (B, H, N|M, d) -> (B, H, N, M)."""
        logits = mask_logits(attention_logits(q, k), mask, causal)
        kth_best = logits.topk(min(self.k, k.shape[-2]), dim=-1).values[..., -1:]
        return softmax_or_zeros(logits.masked_fill(logits < kth_best, -torch.inf))


def _attend_in_groups(q: Tensor, k: Tensor, v: Tensor, prefix: int, block: int, stride: int) -> Tensor:
    """Output of the patches: one softmax over three sets of keys, the prefix, the block and the strided ones."""
    n = q.shape[-2] - prefix
    q = q[..., prefix:, :] * q.shape[-1] ** -0.5
    k_prefix, v_prefix = k[..., :prefix, :], v[..., :prefix, :]
    k, v = k[..., prefix:, :], v[..., prefix:, :]
    in_block, apart = ("(g l)", {"l": block}), ("(l g)", {"g": stride})

    logits = [einsum(q, k_prefix, "b h n d, b h m d -> b h n m")]
    for layout in (in_block, apart):
        products = einsum(_to_groups(q, *layout), _to_groups(k, *layout), "b h g n d, b h g m d -> b h g n m")
        places = _places(n, q.device, *layout)
        visible = rearrange(places >= 0, "g m -> g 1 m")
        if layout is apart:  # those in the block have been seen there
            of_query, of_key = rearrange(places // block, "g n -> g n 1"), rearrange(places // block, "g m -> g 1 m")
            visible = visible & (of_query != of_key)
        logits.append(_from_groups(products.masked_fill(~visible, -torch.inf), n, layout[0]))
    weights = torch.cat(logits, dim=-1).softmax(dim=-1)
    to_prefix, to_block, to_apart = weights.split([part.shape[-1] for part in logits], dim=-1)

    output = einsum(to_prefix, v_prefix, "b h n m, b h m d -> b h n d")
    for part, layout in ((to_block, in_block), (to_apart, apart)):
        mixed = einsum(_to_groups(part, *layout), _to_groups(v, *layout), "b h g n m, b h g m d -> b h g n d")
        output = output + _from_groups(mixed, n, layout[0])
    return output


def _to_groups(x: Tensor, layout: str, size: dict[str, int]) -> Tensor:
    """Cut a sequence into groups, padded with zeros: (B, H, N, d) -> (B, H, groups, tokens of a group, d)."""
    (length,) = size.values()
    padded = F.pad(x, (0, 0, 0, -x.shape[-2] % length))
    return rearrange(padded, f"b h {layout} d -> b h g l d", **size)


def _places(n: int, device: torch.device, layout: str, size: dict[str, int]) -> Tensor:
    """Where the tokens of each group stand in the sequence: (groups, tokens of a group), -1 for padding."""
    counted = rearrange(torch.arange(1, n + 1, device=device), "n -> 1 1 n 1")
    return rearrange(_to_groups(counted, layout, size), "1 1 g l 1 -> g l") - 1


def _from_groups(x: Tensor, n: int, layout: str) -> Tensor:
    """Back to the sequence: (B, H, groups, tokens of a group, d) -> (B, H, N, d)."""
    return rearrange(x, f"b h g l d -> b h {layout} d")[..., :n, :]
