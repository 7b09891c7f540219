"""Attention of each token to a few others: in a fixed pattern, or to the keys of the largest logits.

Letters in the einops patterns: b batch, h heads, d channels per head, g groups of tokens that attend to each other,
l tokens of a group, n queries, m keys.
"""

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor

from vit.attention.functional import attention_logits, attention_weights
from vit.attention.masks import mask_logits, softmax_mask, softmax_or_zeros
from vit.attention.mechanisms.grid import Grid, prefix_length, with_prefix
from vit.attention.mechanisms.mechanism import Mechanism
from vit.attention.mechanisms.softmax import DenseAttention
from vit.attention.mechanisms.softmax_kernels import attend
from vit.attention.qkv_checks import check_are_last, check_qkv
from vit.support.checks import check_positive_int

SIDE = 16  # block and stride in a sequence, which has no columns


class SparseAttention(Mechanism):
    """Attention of each patch to its block of patches, and to every ``stride``-th one (Child et al. 2019, strided).

    With patches numbered row by row, patch i attends to patch j if ``i // block == j // block`` or ``i % stride ==
    j % stride``. By default both equal the columns of the grid, so that a patch attends to its row and its column: any
    patch reaches any other in two steps, with about ``2 sqrt(N)`` keys a query instead of N. A ``stride`` of 1 is full
    attention. Prefix tokens attend to all tokens, and all tokens attend to them.

    If causal, the tokens are a sequence without a grid: the pattern holds for all tokens, and no token attends to a
    later one. With ``block == stride``, token i then reaches only tokens whose number modulo ``stride`` is at most its
    own, through any number of layers: take it beside layers of another attention.

    Args:
        block: Patches of a block; None means the columns of the grid, and 16 in a sequence.
        stride: Distance between the patches attended to outside the block; None means the columns of the grid, and 16
            in a sequence.
    """

    def __init__(self, block: int | None = None, stride: int | None = None) -> None:
        super().__init__()
        for name, value in (("block", block), ("stride", stride)):
            if value is not None:
                check_positive_int(name, value, "None takes the columns of the grid")
        self.block = block
        self.stride = stride

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, grid: Grid | None = None) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, e) -> (B, H, N, e)."""
        check_qkv(q, k, v)
        if causal and q.shape[-2] < k.shape[-2]:  # with a cache: groups would need the old queries as well
            return attend(q, k, v, mask=self._pattern(q, k, causal, grid))
        prefix, block, stride = self._sizes(q, k, causal, grid)
        patches = _attend_in_groups(q, k, v, prefix, block, stride, causal)
        return with_prefix(patches, q, k, v, prefix)

    def weights(self, q: Tensor, k: Tensor, *, causal: bool = False, grid: Grid | None = None) -> Tensor:
        """Compute the attention weights, zero outside the pattern: (B, H, N, d), (B, H, M, d) -> (B, H, N, M)."""
        return attention_weights(q, k, mask=self._pattern(q, k, causal, grid))

    def _pattern(self, q: Tensor, k: Tensor, causal: bool, grid: Grid | None) -> Tensor:
        """Return which token (row) attends to which (column): (N, M), boolean."""
        prefix, block, stride = self._sizes(q, k, causal, grid)
        j = torch.arange(k.shape[-2] - prefix, device=q.device)
        i = rearrange(j[k.shape[-2] - q.shape[-2] :], "n -> n 1")
        pattern = (i // block == j // block) | (i % stride == j % stride)
        return pattern & (j <= i) if causal else F.pad(pattern, (prefix, 0, prefix, 0), value=True)

    def _sizes(self, q: Tensor, k: Tensor, causal: bool, grid: Grid | None) -> tuple[int, int, int]:
        """Return the number of prefix tokens, the block and the stride."""
        if causal:
            check_are_last(q, k)
        prefix = 0 if causal else prefix_length("SparseAttention", q, k, grid)
        side = SIDE if causal else grid[1]
        return prefix, self.block or side, self.stride or side


class TopKAttention(DenseAttention):
    """Attention of each query to the ``k`` keys of the largest logits (Zhao et al. 2019; Gupta et al. 2021).

    Keys that tie with the k-th are kept as well, so that the order of the keys does not matter. All logits are
    computed: it saves no time or memory, but removes the noise of small weights.

    Args:
        k: Number of keys that each query keeps.
    """

    def __init__(self, k: int = 8) -> None:
        super().__init__()
        check_positive_int("k", k)
        self.k = k

    def weights(self, q: Tensor, k: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Compute the attention weights, zero except the largest: (B, H, N, d), (B, H, M, d) -> (B, H, N, M)."""
        logits = attention_logits(q, k)
        logits = mask_logits(logits, softmax_mask(mask, causal, logits.shape, q.device))
        kth_best = logits.topk(min(self.k, k.shape[-2]), dim=-1).values[..., -1:]
        return softmax_or_zeros(logits.masked_fill(logits < kth_best, -torch.inf))


def _attend_in_groups(q: Tensor, k: Tensor, v: Tensor, prefix: int, block: int, stride: int, causal: bool) -> Tensor:
    """Compute the output of the patches, by one softmax over the keys of the prefix, the block and the stride."""
    n = q.shape[-2] - prefix
    q = q[..., prefix:, :] * q.shape[-1] ** -0.5
    k_prefix, v_prefix = k[..., :prefix, :], v[..., :prefix, :]
    k, v = k[..., prefix:, :], v[..., prefix:, :]
    in_block, strided = ("(g l)", {"l": block}), ("(l g)", {"g": stride})

    logits = [einsum(q, k_prefix, "b h n d, b h m d -> b h n m")]
    for layout in (in_block, strided):
        products = einsum(_to_groups(q, *layout), _to_groups(k, *layout), "b h g n d, b h g m d -> b h g n m")
        positions = _positions(n, q.device, *layout)
        visible = rearrange(positions >= 0, "g m -> g 1 m")
        if layout is strided:  # without the keys that are also in the block
            blocks = positions // block
            visible = visible & (rearrange(blocks, "g n -> g n 1") != rearrange(blocks, "g m -> g 1 m"))
        if causal:
            visible = visible & (rearrange(positions, "g m -> g 1 m") <= rearrange(positions, "g n -> g n 1"))
        logits.append(_from_groups(products.masked_fill(~visible, -torch.inf), n, layout[0]))
    weights = torch.cat(logits, dim=-1).softmax(dim=-1)
    to_prefix, to_block, to_strided = weights.split([part.shape[-1] for part in logits], dim=-1)

    output = einsum(to_prefix, v_prefix, "b h n m, b h m d -> b h n d")
    for part, layout in ((to_block, in_block), (to_strided, strided)):
        mixed = einsum(_to_groups(part, *layout), _to_groups(v, *layout), "b h g n m, b h g m d -> b h g n d")
        output = output + _from_groups(mixed, n, layout[0])
    return output


def _to_groups(x: Tensor, layout: str, size: dict[str, int]) -> Tensor:
    """Cut a sequence into groups, padded with zeros: (B, H, N, d) -> (B, H, groups, tokens of a group, d)."""
    (length,) = size.values()
    padded = F.pad(x, (0, 0, 0, -x.shape[-2] % length))
    return rearrange(padded, f"b h {layout} d -> b h g l d", **size)


def _positions(n: int, device: torch.device, layout: str, size: dict[str, int]) -> Tensor:
    """Return the positions of the tokens of each group: (groups, tokens of a group), -1 for padding."""
    counted = rearrange(torch.arange(1, n + 1, device=device), "n -> 1 1 n 1")
    return rearrange(_to_groups(counted, layout, size), "1 1 g l 1 -> g l") - 1


def _from_groups(x: Tensor, n: int, layout: str) -> Tensor:
    """Join the groups to a sequence: (B, H, groups, tokens of a group, d) -> (B, H, N, d)."""
    return rearrange(x, f"b h g l d -> b h {layout} d")[..., :n, :]
