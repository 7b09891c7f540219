"""Confidence intervals of means, medians and shares, over images."""

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor


class Interval(NamedTuple):
    """A mean with its confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


class Estimate(NamedTuple):
    """A median or a share with its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"{self.value:.2f} (no interval)"
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def mean_interval(values: Tensor, confidence: float = 0.95) -> Interval:
    """Average one number per image, with the interval of Student's t: (B,) -> Interval.

    One image has no interval: -inf to inf.

    >>> str(mean_interval(torch.tensor([1.0, 2.0, 3.0])))
    '2.000 (-0.484 to 4.484)'
    """
    if values.ndim != 1 or not len(values):
        raise ValueError(f"values have shape {tuple(values.shape)}: give one number for each of at least one image")
    values = values.detach().double().cpu()
    mean = values.mean().item()
    if len(values) == 1:
        return Interval(mean, -math.inf, math.inf)
    half = student_t(confidence, len(values) - 1) * values.std().item() / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def median_interval(values: Tensor, confidence: float = 0.95) -> Estimate:
    """Return the median of one number per image, with an exact interval between two of them: (B,) -> Estimate.

    It holds for any distribution (Thompson 1936): the number of values below the median is that of heads in B tosses
    of a coin. With fewer images than ``fewest_images(confidence)`` it is -inf to inf.

    >>> str(median_interval(torch.arange(9.0)))
    '4.00 (1.00 to 7.00)'
    """
    values = values.detach().double().cpu().sort().values
    if not len(values):
        return Estimate(math.nan, -math.inf, math.inf)
    value = (values[(len(values) - 1) // 2] + values[len(values) // 2]).item() / 2
    outside = _outside(len(values), (1 - confidence) / 2)
    if not outside:
        return Estimate(value, -math.inf, math.inf)
    return Estimate(value, values[outside - 1].item(), values[-outside].item())


def fewest_images(confidence: float) -> int:
    """Return the number of images from which a median has an interval.

    >>> fewest_images(0.95)
    6
    """
    return math.ceil(1 - math.log2(1 - confidence))


def share_interval(count: int, total: int, confidence: float = 0.95) -> Estimate:
    """Return the share of some images in all, with its exact interval (Clopper and Pearson 1934).

    >>> str(share_interval(0, 100))
    '0.00 (0.00 to 0.04)'
    """
    tail = (1 - confidence) / 2
    low = 1 - _largest_share(total - count, total, tail)
    return Estimate(count / total, low, _largest_share(count, total, tail))


@cache
def student_t(confidence: float, freedom: int) -> float:
    """Return the bound that the absolute value of Student's t stays below with this probability."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):  # halvings, to the precision of a float
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, freedom) < confidence else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """Return the probability of ``|t| < sqrt(freedom) tan(angle)`` (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(1 + odd, freedom - 2, 2):
        term *= math.cos(angle) ** 2 * k / (k + 1)
        total += term
    return (angle + math.sin(angle) * total) * 2 / math.pi if odd else math.sin(angle) * total


@cache
def _outside(total: int, tail: float) -> int:
    """Return how many of the lowest values lie outside the interval of a median, and as many of the highest."""
    return int((_binomial_at_most(total, 0.5) <= tail).sum())


@cache
def _largest_share(count: int, total: int, tail: float) -> float:
    """Return the share at which at most ``count`` of ``total`` have the probability ``tail``."""
    if count == total:
        return 1.0
    low, high = count / total, 1.0
    for _ in range(60):
        share = (low + high) / 2
        low, high = (share, high) if _binomial_at_most(total, share)[count] > tail else (low, share)
    return high


def _binomial_at_most(total: int, share: float) -> Tensor:
    """Return the probability of at most 0, 1, ..., ``total`` successes: -> (total + 1,)."""
    counts = torch.arange(total + 1, dtype=torch.float64)
    ways = math.lgamma(total + 1) - torch.lgamma(counts + 1) - torch.lgamma(total - counts + 1)
    successes = torch.xlogy(counts, torch.tensor(share, dtype=torch.float64))
    failures = torch.xlogy(total - counts, torch.tensor(1 - share, dtype=torch.float64))
    return (ways + successes + failures).exp().cumsum(dim=0)
