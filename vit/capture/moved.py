"""Tells which copies of an image changed, and which differ by rounding alone."""

import torch
from torch import Tensor

ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-5}  # as a share of the largest value
COARSE = 4  # units of rounding of types with fewer bits


def changes(copies: Tensor) -> Tensor:
    """Return how much each copy differs from the first: (K, ...) -> (K - 1, ...)."""
    return (copies[1:] - copies[:1]).detach().abs()


def rounding(copies: Tensor) -> float:
    """Return the largest difference from the first copy that may be rounding: (K, ...)."""
    share = ROUNDING.get(copies.dtype, COARSE * torch.finfo(copies.dtype).eps)
    return share * float(copies[0].detach().abs().max())
