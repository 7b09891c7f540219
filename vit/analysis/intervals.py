"""Intervals of shares, of their differences, and of means over images; also in words."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

from torch import Tensor

from vit.support.share_interval import share_interval

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A value with its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero."""
        return not self.low <= 0 <= self.high

    def as_percent(self) -> str:
        """Return a share in words.

        >>> Interval(0.5, 0.4, 0.6).as_percent().replace(chr(160), " ")
        '50.0 % (40.0 to 60.0)'
        """
        return f"{percent(self.value)} ({100 * self.low:.1f} to {100 * self.high:.1f})"

    def as_points(self) -> str:
        """Return a difference of shares in words.

        >>> Interval(0.025, -0.01, 0.06).as_points()
        '2.5 points (-1.0 to 6.0)'
        """
        return f"{100 * self.value:z.1f} points ({100 * self.low:z.1f} to {100 * self.high:z.1f})"

    def __str__(self) -> str:
        return f"{self.value:z.2f} ({self.low:z.2f} to {self.high:z.2f})"


def percent(share: float) -> str:
    """Return a share in words."""
    return f"{100 * share:.1f}\u00a0%"


def interval_of_share(share: float, count: int) -> Interval:
    """Return a share of ``count`` images with its interval.

    >>> str(interval_of_share(1.0, 96))
    '1.00 (0.96 to 1.00)'
    """
    return Interval(share, *share_interval(share, count, CONFIDENCE))


def paired_difference(first: Sequence[bool], second: Sequence[bool], comparisons: int = 1) -> Interval:
    """Return the difference of two shares of the same images, with its interval (Agresti and Min 2005).

    Images that are right or wrong both times say nothing about the difference, so the interval is narrower than that of
    two samples.

    >>> str(paired_difference([True] * 10, [True] * 6 + [False] * 4))
    '0.40 (0.02 to 0.65)'

    Args:
        first: Whether each image is right.
        second: The same for the same images.
        comparisons: Number of differences among which this one may have been picked. The interval is wide enough for
            all of them together to hold in 95 % of cases (Bonferroni).

    Raises:
        ValueError: If there are no images, or not the same number.
    """
    pairs = list(zip(first, second, strict=True))
    if not pairs:
        raise ValueError("there are no images (0): give at least one")
    gained = sum(before and not after for before, after in pairs)
    lost = sum(after and not before for before, after in pairs)
    # Half an image is added to each of the four kinds of pairs.
    count, gained_more, lost_more = len(pairs) + 2, gained + 0.5, lost + 0.5
    middle = (gained_more - lost_more) / count
    half = _z(comparisons) * math.sqrt((gained_more + lost_more) / count - middle**2) / math.sqrt(count)
    return Interval((gained - lost) / len(pairs), max(-1.0, middle - half), min(1.0, middle + half))


def mean_interval(values: Tensor, comparisons: int = 1) -> Interval:
    """Average one number per image, with the interval of Student's t: (B,) -> Interval.

    >>> import torch
    >>> str(mean_interval(torch.tensor([1.0, 2.0, 3.0])))
    '2.00 (-0.48 to 4.48)'

    Raises:
        ValueError: If there are fewer than 2 images.
    """
    from scipy.special import stdtrit

    if len(values) < 2:
        raise ValueError(f"there are too few images ({len(values)}) for an interval: give at least 2")
    values = values.detach().cpu().double()
    mean, spread = values.mean().item(), values.std().item() / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, _level(comparisons))) * spread
    return Interval(mean, mean - half, mean + half)


def mean_interval_of_draws(values: Tensor) -> Interval:
    """Average one number for each draw and image, with an interval over further draws and images: (K, B) -> Interval.

    Draws and images vary independently, so that the variances of both means add up (Student's t, with the degrees of
    freedom of Satterthwaite 1946).

    >>> import torch
    >>> str(mean_interval_of_draws(torch.tensor([[0.0, 2.0], [2.0, 4.0]])))
    '2.00 (-4.08 to 8.08)'

    Raises:
        ValueError: If there are fewer than 2 draws or 2 images.
    """
    from scipy.special import stdtrit

    if min(values.shape) < 2:
        raise ValueError(f"there are too few draws or images {tuple(values.shape)} for an interval: give at least 2")
    values = values.detach().cpu().double()
    parts = [
        (values.mean(dim=other).var().item() / count, count - 1)
        for other, count in ((1, len(values)), (0, values.shape[1]))
    ]
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / count for part, count in parts) if variance else 1.0
    half = float(stdtrit(freedom, _level(1))) * math.sqrt(variance)
    mean = values.mean().item()
    return Interval(mean, mean - half, mean + half)


def halves(values: Tensor) -> tuple[Tensor, Tensor]:
    """Split numbers of images, (B, ...), into two halves: one to choose by, and the other one to report.

    >>> import torch
    >>> halves(torch.arange(5))
    (tensor([0, 2, 4]), tensor([1, 3]))
    """
    return values[::2], values[1::2]


def together(numbers: Sequence[int]) -> str:
    """Return numbers in words.

    >>> together([0]), together([0, 1]), together([0, 1, 4])
    ('0', '0 and 1', '0, 1 and 4')
    """
    words = [str(number) for number in numbers]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _level(comparisons: int) -> float:
    return 1 - (1 - CONFIDENCE) / 2 / comparisons


def _z(comparisons: int) -> float:
    return NormalDist().inv_cdf(_level(comparisons))
