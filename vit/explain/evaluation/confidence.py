"""Confidence intervals of means, medians and shares, over images, and the number of images that would decide.

All of them assume that images are independent. If they are not, ``mean_of_clusters`` returns numbers that are.
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, repeat
from operator import mul
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from vit.support.extras import import_extra
from vit.support.precision import in_double

POWER = 0.8  # probability that as many images as are asked for decide, if the present value is the true one
STEP, MOST = 1.15, 10_000  # numbers of images are tried in steps, up to a multiple of the present number


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

    With one image, the interval is -inf to inf.

    >>> str(mean_interval(torch.tensor([1.0, 2.0, 3.0])))
    '2.000 (-0.484 to 4.484)'
    """
    if values.ndim != 1 or not len(values):
        raise ValueError(f"values have shape {tuple(values.shape)}: give one number for each of at least one image")
    values = values.detach().cpu().double()
    mean = values.mean().item()
    if len(values) == 1:
        return Interval(mean, -math.inf, math.inf)
    student_t = import_extra("scipy.special", "explain").stdtrit(len(values) - 1, (1 + confidence) / 2).item()
    half = student_t * values.std().item() / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def median_interval(values: Tensor, confidence: float = 0.95) -> Estimate:
    """Return the median of one number per image, with an exact interval from one number to another: (B,) -> Estimate.

    The interval holds for any distribution (Thompson 1936): the number of values below the median is distributed like
    heads in B coin tosses. With fewer images than ``fewest_images(confidence)``, it is -inf to inf.

    >>> str(median_interval(torch.arange(9.0)))
    '4.00 (1.00 to 7.00)'
    """
    values = values.detach().cpu().double().sort().values
    if not len(values):
        return Estimate(math.nan, -math.inf, math.inf)
    value = (values[(len(values) - 1) // 2] + values[len(values) // 2]).item() / 2
    fewer_heads = import_extra("scipy.special", "explain").bdtr(torch.arange(len(values)).numpy(), len(values), 0.5)
    outside = int((fewer_heads <= (1 - confidence) / 2).sum())  # number of lowest values, and of highest values
    if not outside:
        return Estimate(value, -math.inf, math.inf)
    return Estimate(value, values[outside - 1].item(), values[-outside].item())


def spread_of_seeds(values: Tensor, confidence: float = 0.95) -> float:
    """Return how far the median over images may be off because of the seeds: (S, B) -> half of Student's interval.

    The interval is that of the medians of single seeds. With one seed, it is infinite.

    >>> round(spread_of_seeds(torch.arange(9.0) + torch.tensor([[-1.0], [0.0], [1.0]])), 3)
    2.484
    """
    of_seeds = mean_interval(in_double(values).quantile(0.5, dim=1), confidence)
    return of_seeds.high - of_seeds.mean


def widened(estimate: Estimate, spread: float) -> Estimate:
    """Widen an estimate by the spread of a second source of chance: distances are added as squares.

    >>> str(widened(Estimate(0.5, 0.2, 0.5), spread=0.4))
    '0.50 (0.00 to 0.90)'
    """
    value, low, high = estimate
    if math.isinf(low):
        return estimate
    return Estimate(value, value - math.hypot(value - low, spread), value + math.hypot(high - value, spread))


def mean_of_clusters(values: Tensor, clusters: Tensor) -> Tensor:
    """Average the images of each cluster, such as the frames of a video: (B,), labels (B,) -> (clusters,).

    Clusters are independent even if the images in each are not, so an interval over clusters holds.

    >>> mean_of_clusters(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([7, 7, 4]))
    tensor([5., 2.])
    """
    places, counts = clusters.unique(return_inverse=True, return_counts=True)[1:]
    return values.new_zeros(len(counts)).index_add(0, places, values) / counts


def check_clusters(clusters: Tensor | Sequence[int] | None, images: int) -> Tensor | None:
    """Return the cluster of each image as a tensor (B,); None stays.

    Raises:
        ValueError: If there is not one for each image.
    """
    if clusters is None:
        return None
    clusters = torch.as_tensor(clusters).cpu()
    if clusters.shape != (images,):
        raise ValueError(f"clusters have shape {tuple(clusters.shape)} for {images} images: give a number for each")
    return clusters


def check_labels(labels: Tensor | Sequence[int] | None, images: Tensor) -> Tensor | None:
    """Return the class of each image (B, C, H, W) as a tensor (B,); None stays.

    Raises:
        ValueError: If there is not one for each image.
    """
    if labels is None:
        return None
    labels = torch.as_tensor(labels)
    if labels.shape != (len(images),):
        raise ValueError(f"labels have shape {tuple(labels.shape)} for {len(images)} images: give a class for each")
    return labels


def fewest_images(confidence: float) -> int:
    """Return the smallest number of images for which a median has an interval.

    >>> fewest_images(0.95)
    6
    """
    return math.ceil(1 - math.log2(1 - confidence))


def exact_share_interval(count: float, total: int, confidence: float = 0.95) -> Estimate:
    """Return the share ``count / total`` with its exact interval (Clopper and Pearson 1934).

    If images count in part, such as half a hit, the interval is that of whole ones, which vary more.

    >>> str(exact_share_interval(0, 100))
    '0.00 (0.00 to 0.04)'
    """
    tail = (1 - confidence) / 2
    quantile = import_extra("scipy.special", "explain").betaincinv
    low = float(quantile(count, total - count + 1, tail)) if count > 0 else 0.0
    high = float(quantile(count + 1, total - count, 1 - tail)) if count < total else 1.0
    return Estimate(count / total, low, high)


def median_of_more(median: Estimate, images: int, more: float) -> Estimate:
    """Return the estimate that another number of images would give if its value stayed.

    The width of an interval falls with the square root of the number of images.

    >>> str(median_of_more(Estimate(0.5, 0.3, 0.6), images=25, more=100))
    '0.50 (0.40 to 0.55)'
    """
    if more == images:
        return median
    narrower = math.sqrt(images / more)
    value, low, high = median
    return Estimate(value, value - narrower * (value - low), value + narrower * (high - value))


def images_needed(decides: Callable[[float], bool], images: int, confidence: float) -> int | None:
    """Return the number of images that would probably decide a question, or None if no number would.

    If intervals of n images are just short enough, other images decide in half of all cases only, because their value
    varies. By the normal approximation, ``(1 + z(POWER) / z(confidence)) ** 2`` times as many images decide with the
    probability ``POWER``. The result has two digits.

    Args:
        decides: Whether the interval that a number of images would give around the present value decides.
        images: Present number of images.
        confidence: Confidence of the interval.
    """
    margin = (1 + NormalDist().inv_cdf(POWER) / NormalDist().inv_cdf((1 + confidence) / 2)) ** 2
    tried = accumulate(repeat(STEP, math.ceil(math.log(MOST, STEP))), mul, initial=images)
    enough = next(filter(decides, tried), None)
    return None if enough is None else int(float(f"{margin * enough:.1e}"))
