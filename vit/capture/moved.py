"""Changes images, and tells which copies of an image changed, and which differ by rounding alone."""

import torch
from torch import Tensor

UNITS = {torch.float64: 16, torch.float32: 16}  # of rounding of the largest value
COARSE = 4  # the same for types with fewer bits
MARGIN = 10  # times the rounding that was measured


def changes(copies: Tensor) -> Tensor:
    """Return how much each copy differs from the first: (K, ...) -> (K - 1, ...)."""
    return (copies[1:] - copies[:1]).detach().abs()


def rounding(copies: Tensor) -> float:
    """Return the largest difference from the first copy that may be rounding: (K, ...), the last copy unchanged too.

    The first and the last copy differ by rounding alone, because kernels add up the rows of a batch in another order at
    its end. Rounding may be ``MARGIN`` times that, or a few units of the type: 2e-6 of the largest value in float32,
    4e-15 in float64.
    """
    first, last = copies[0].detach(), copies[-1].detach()
    units = UNITS.get(copies.dtype, COARSE) * torch.finfo(copies.dtype).eps
    return max(units * float(first.abs().max()), MARGIN * float((last - first).abs().max()))


def noise_like(image: Tensor) -> Tensor:
    """Return standard normal noise of the shape of an image, the same at each call."""
    return torch.randn(image.shape, generator=torch.Generator().manual_seed(0)).to(image)
