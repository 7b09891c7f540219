"""Verdicts: what an interval over images says of a question, and how many images would decide it.

Letters in the einops patterns: s seeds of shuffles, b images.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from einops import reduce
from torch import Tensor

from vit.explain.evaluation.confidence import (
    Estimate,
    exact_share_interval,
    fewest_images,
    images_needed,
    median_interval,
    median_of_more,
    spread_of_seeds,
    widened,
)
from vit.explain.evaluation.findings import Level, count_images
from vit.support.precision import in_double

NO_MORE = "more images would hardly change this"

Expected = Callable[[float], Estimate]  # a number of images -> the estimate they would give if its value stayed


class Verdict(NamedTuple):
    """What the report says if a whole interval lies between two bounds."""

    level: Level
    words: str
    above: float = -math.inf
    below: float = math.inf


def decide(
    expected: Expected,
    images: int,
    question: str,
    verdicts: Sequence[Verdict],
    confidence: float,
    unit: str = "image",
) -> tuple[Level, str, str]:
    """Return level and words of the first verdict that applies.

    If none applies, the level is amber, and the words say that the question is open.

    For an amber level, the third text says whether more images (or other units) would give another verdict.
    """

    def find(count: float) -> Verdict | None:
        low, high = expected(count)[1:]
        return next((verdict for verdict in verdicts if low > verdict.above and high < verdict.below), None)

    found = find(images)
    if found is not None and found.level != "amber":
        return found.level, found.words, ""
    words = f"cannot tell on {count_images(images, unit)} whether {question}" if found is None else found.words
    more = say_more(lambda count: find(count) not in (found, None), images, confidence, unit)
    return "amber", words, more


def say_more(decides: Callable[[float], bool], images: int, confidence: float, unit: str = "image") -> str:
    """Say how many images, or other units, would probably decide, or that none would."""
    if images < fewest_images(confidence):  # so few say nothing about others
        return f"more {unit}s are needed to decide it"
    needed = images_needed(decides, images, confidence)
    return NO_MORE if needed is None else f"about {needed:,} {unit}s would probably decide it"


def median(values: Tensor, confidence: float) -> tuple[Expected, int]:
    """Estimate the median over the images with comparable maps; return the number of these images, too.

    Values are one for each image, (B,), or for each shuffle and image, (S, B).
    """
    if values.ndim == 2:
        values = values[:, ~values.isnan().any(dim=0)]
        spread = spread_of_seeds(values, confidence) if values.numel() else 0.0
        of_images, count = median(reduce(in_double(values), "s b -> b", "mean"), confidence)
        return lambda images: widened(of_images(images), spread), count
    values = values[~values.isnan()]
    return partial(median_of_more, median_interval(values, confidence), len(values)), len(values)


def share(chosen: Tensor, confidence: float) -> Expected:
    """Estimate the share of images that are chosen. Some may count in part, as the mean of a cluster does."""
    count, total = in_double(chosen).sum().item(), len(chosen)

    def expected(images: float) -> Estimate:
        among = count if images == total else round(images * count / total)
        return exact_share_interval(among, round(images), confidence)

    return expected
