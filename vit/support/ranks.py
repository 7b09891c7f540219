"""Spearman's rank correlation."""

import torch
from torch import Tensor


def rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Compute Spearman's correlation over the last axis: (..., M), (..., M) -> (...).

    It is 0 if all values are equal, and NaN if a value is NaN, which has no rank.

    >>> rank_correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([9.0, 5.0, 4.0])).round(decimals=4)
    tensor(-1.)
    """
    unranked = (first.isnan() | second.isnan()).any(dim=-1)
    first, second = (ranks - ranks.mean(dim=-1, keepdim=True) for ranks in (_rank(first), _rank(second)))
    spread = first.norm(dim=-1) * second.norm(dim=-1)
    correlation = (first * second).sum(dim=-1) / spread.clamp(min=torch.finfo(spread.dtype).tiny)
    return torch.where(unranked, torch.nan, correlation)


def _rank(values: Tensor) -> Tensor:
    """Return the rank of each value in its row: (..., M) -> (..., M). Equal values share their mean rank."""
    ordered, values = values.sort(dim=-1).values.contiguous(), values.contiguous()
    return (torch.searchsorted(ordered, values) + torch.searchsorted(ordered, values, right=True)) / 2
