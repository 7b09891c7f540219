"""Measures how alike two maps of an image are: in the order of all patches, and in their highest patches.

Letters in the einops patterns: b batch, r s grid rows and columns, n patches.
"""

import torch
from einops import rearrange, reduce
from torch import Tensor

from vit.support.ranks import rank_correlation


def is_constant(maps: Tensor) -> Tensor:
    """Return whether all patches of a map have one value, apart from rounding: (B, rows, columns) -> (B,), boolean."""
    kind = torch.finfo(maps.dtype)
    rounding = (100 if kind.bits >= 32 else 4) * kind.eps
    low, high, largest = (
        reduce(x, "b r s -> b", how) for x, how in ((maps, "min"), (maps, "max"), (maps.abs(), "max"))
    )
    return high - low <= rounding * largest


def without_rounding(maps: Tensor) -> Tensor:
    """Return maps (B, rows, columns), with the sign in place of each that is constant: rounding is no order."""
    return torch.where(rearrange(is_constant(maps), "b -> b 1 1"), maps.sign(), maps)


def map_correlation(maps: Tensor, others: Tensor) -> Tensor:
    """Compute Spearman's correlation of two maps of each image: (B, rows, columns) twice -> (B,), from -1 to 1.

    If one map is constant, the result is 0. If both are constant, it is NaN: neither orders its patches.

    >>> rising = torch.tensor([[[0.0, 1.0], [2.0, 3.0]]])
    >>> [round(map_correlation(rising, other).item(), 4) for other in (rising.exp(), -rising)]
    [1.0, -1.0]
    """
    rows, other_rows = (rearrange(x, "b r s -> b (r s)") for x in (maps, others))
    flat, other_flat = is_constant(maps), is_constant(others)
    correlation = torch.where(flat | other_flat, 0.0, rank_correlation(rows, other_rows))
    return torch.where(flat & other_flat, torch.nan, correlation)


def top_overlap(maps: Tensor, others: Tensor, count: int) -> Tensor:
    """Compute the share of their ``count`` highest patches that two maps have in common: -> (B,), from 0 to 1.

    Chance alone gives ``count`` / N for N patches. Patches that tie for the last places share them evenly. If both maps
    are constant, the result is NaN.

    >>> peak, slope = torch.tensor([[[9.0, 2.0], [1.0, 0.0]]]), torch.tensor([[[9.0, 0.0], [1.0, 2.0]]])
    >>> top_overlap(peak, slope, 1).item(), top_overlap(peak, slope, 2).item()
    (1.0, 0.5)
    """
    chosen, other_chosen = (share_highest(rearrange(x, "b r s -> b (r s)"), count) for x in (maps, others))
    overlap = reduce(chosen * other_chosen, "b n -> b", "sum") / count
    return torch.where(is_constant(maps) & is_constant(others), torch.nan, overlap)


def share_highest(values: Tensor, count: int | Tensor) -> Tensor:
    """Return 1 for the ``count`` highest values of a row, and a share for those that tie: (B, N) -> (B, N).

    ``count`` is one number for all rows, or one for each, (B, 1).
    """
    count = torch.as_tensor(count, device=values.device)
    last = values.sort(dim=-1, descending=True).values.gather(1, (count - 1).expand(len(values), 1))
    above, tied = values > last, values == last
    share = (count - above.sum(dim=-1, keepdim=True)) / tied.sum(dim=-1, keepdim=True)
    return above + tied * share
