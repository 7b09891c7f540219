"""Scores of methods on a model and images, always beside the control maps (random, uniform, center).

``faithfulness.py`` has the measures of single images, ``ground_truth.py`` those against a known answer.
"""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vit.explain.evaluation.faithfulness import Curves, Removal, gini, removal_curves, saco
from vit.explain.evaluation.ground_truth import energy_inside, intersection_over_union, pointing_game
from vit.explain.evaluation.intervals import Interval, mean_interval
from vit.explain.evaluation.table import Table
from vit.explain.maps import CONTROLS, METHODS, Subject, signed_map
from vit.explain.maps.perturbation import can_drop
from vit.explain.memory import PeakMemory

ERROR = 0.05  # probability that any comparison of a table is wrong
FEWEST = 10  # images that a comparison of methods needs


@dataclass
class Scores(Table):
    """A table with a row for each method, and the values of single images behind its means.

    Attributes:
        values: The value of each image, (images,), by method and measure.
    """

    values: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def difference(self, method: str, other: str, measure: str, confidence: float = 0.95) -> Interval:
        """Return the difference of a measure between two methods, paired by image."""
        return mean_interval(self.values[method][measure] - self.values[other][measure], confidence)

    def recommended(self, measure: str) -> list[str]:
        """Return the methods that are not surely below the best one, by the mean of a measure, best first.

        Each method must also be surely above every control map. If the best one is not, the list is empty. All
        comparisons together hold with 95 % confidence: each uses the Bonferroni level (Dunn 1961). With fewer than 10
        images, the list is empty.
        """
        controls = [control for control in CONTROLS if control in self.values]
        means = {m: values[measure].mean().item() for m, values in self.values.items() if m not in CONTROLS}
        methods = sorted(means, key=means.get, reverse=True)
        if not methods or len(self.values[methods[0]][measure]) < FEWEST:
            return []
        comparisons = math.comb(len(methods), 2) + len(methods) * len(controls)  # any two may be the best ones
        confidence = 1 - ERROR / max(comparisons, 1)

        def surely_above(method: str, other: str) -> bool:
            return self.difference(method, other, measure, confidence).low > 0

        sure = [method for method in methods if all(surely_above(method, control) for control in controls)]
        if methods[0] not in sure:
            return []
        return [method for method in sure if not surely_above(methods[0], method)]


def score(
    model: nn.Module,
    loader: Iterable[Any],
    methods: Sequence[str] | None = None,
    *,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
) -> Scores:
    """Score how well the maps of each method mark the patches that predictions depend on: a table with 95 % intervals.

    Maps explain the predicted class. Columns, each a mean over images (see ``faithfulness.py``):

    - ``drop``: area between two probability curves, least and most relevant tokens dropped first. High is good; random
      maps get 0 on average. ``drop deletion`` and ``drop insertion`` are the areas under the two curves.
    - ``fill``, ``fill deletion``, ``fill insertion``: the same with patches painted in the mean colour.
    - ``positive``, ``negative``: share of predictions kept, most or least relevant patches painted first.
    - ``SaCo``: whether the values are right, not only their order, from -1 to 1.
    - ``Gini``: concentration of the map on few patches; neither good nor bad.
    - ``against random``: whether ``drop`` (or ``fill``) is surely above that of random maps on the same images. The
      answers for all methods hold together with 95 % confidence.
    - ``ms``, ``MB``: time and peak memory of tensors for a map, both per image of a batch.

    Args:
        model: A ViT classifier in eval mode.
        loader: Batches of images (B, C, H, W), or pairs of images and labels; labels are not needed. Give 200
            images or more, so that the intervals tell methods apart.
        methods: Keys of ``METHODS``; None is all that fit the model. Missing control maps are added.
        grid: Rows and columns of patches, checked against the detected grid (see ``explain``).
        num_prefix_tokens: Number of tokens before the patches, checked against the detected number.

    Raises:
        ValueError: If a given method is unknown or does not fit the model, or there is no image.
    """
    fitting, methods = methods is None, _with_controls(methods)
    parts: dict[str, dict[str, list[Tensor]]] = {method: {} for method in methods}
    seconds, megabytes = dict.fromkeys(methods, 0.0), {}
    count = 0
    for batch in loader:
        images = batch if isinstance(batch, Tensor) else batch[0]
        subject = Subject(model, images, grid=grid, num_prefix_tokens=num_prefix_tokens)
        removals = (*(["token_drop"] if can_drop(subject) else []), "mean_fill")
        if fitting and not count:
            methods = [method for method in methods if _fits(method, subject)]
        _ = subject.contrast  # cached now, so that no method is timed with it
        count += len(images)
        for method in methods:
            if method not in megabytes:
                with PeakMemory() as memory:
                    signed_map(method, subject)
                megabytes[method] = memory.peak / 1e6 / len(images)
            start = time.perf_counter()
            maps = signed_map(method, subject)
            maps.sum().item()  # waits for a GPU
            seconds[method] += time.perf_counter() - start
            for name, numbers in _measure(subject, maps, removals).items():
                parts[method].setdefault(name, []).append(numbers.cpu())
    if not count:
        raise ValueError("the loader gave no images: score needs at least one batch")
    values = {method: {name: torch.cat(found) for name, found in parts[method].items()} for method in methods}
    rows = [
        {"method": method}
        | {name: mean_interval(numbers) for name, numbers in values[method].items()}
        | {"against random": _against_random(values, method)}
        | {"ms": 1000 * seconds[method] / count, "MB": megabytes[method]}
        for method in methods
    ]
    return Scores(rows, f"{count} images; mean (95 % interval)", values)


def localise(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    masks: Tensor,
    methods: Sequence[str] | None = None,
    *,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
) -> Scores:
    """Score how well the maps of each method find the place that decides the label: a table with 95 % intervals.

    Columns: ``hits`` (the highest patch is inside, the pointing game), ``energy`` (share of the map inside) and ``IoU``
    (overlap of the highest patches with the place).

    Args:
        model: A ViT classifier in eval mode.
        images: Images, (B, C, H, W), passed 100 at a time.
        labels: The classes to explain, (B,).
        masks: The share of each patch inside the place, (B, rows, columns), as ``cells_of_boxes`` returns it.
        methods: Keys of ``METHODS``; None is all. Missing control maps are added.
        grid: Rows and columns of patches, checked against the detected grid (see ``explain``).
        num_prefix_tokens: Number of tokens before the patches, checked against the detected number.
    """
    measures = {"hits": pointing_game, "energy": energy_inside, "IoU": intersection_over_union}
    values: dict[str, dict[str, Tensor]] = {}
    for method in _with_controls(methods):
        found: dict[str, list[Tensor]] = {name: [] for name in measures}
        for part, asked, inside in zip(images.split(100), labels.split(100), masks.split(100), strict=True):
            maps = signed_map(method, Subject(model, part, asked, None, grid, num_prefix_tokens)).clamp(min=0)
            for name, measure in measures.items():
                found[name].append(measure(maps, inside))
        values[method] = {name: torch.cat(numbers) for name, numbers in found.items()}
    rows = [{"method": method} | {name: mean_interval(x) for name, x in values[method].items()} for method in values]
    return Scores(rows, f"{len(images)} images; mean (95 % interval)", values)


def _fits(method: str, subject: Subject) -> bool:
    try:
        signed_map(method, subject)
    except ValueError:
        return False
    return True


def _measure(subject: Subject, maps: Tensor, removals: Sequence[Removal]) -> dict[str, Tensor]:
    measured = {}
    for removal in removals:
        name = "drop" if removal == "token_drop" else "fill"
        curves: Curves = removal_curves(subject, maps, removal)
        measured |= {
            name: curves.insertion - curves.deletion,
            f"{name} deletion": curves.deletion,
            f"{name} insertion": curves.insertion,
        }
    measured |= {"positive": curves.positive, "negative": curves.negative}
    return measured | {"SaCo": saco(subject, maps), "Gini": gini(maps)}


def _with_controls(methods: Sequence[str] | None) -> list[str]:
    chosen = list(METHODS) if methods is None else list(methods)
    return chosen + [control for control in CONTROLS if control not in chosen]


def _against_random(values: dict[str, dict[str, Tensor]], method: str) -> str:
    measure = "drop" if "drop" in values[method] else "fill"
    confidence = 1 - ERROR / len(values)
    difference = mean_interval(values[method][measure] - values["random"][measure], confidence)
    if len(values[method][measure]) < FEWEST or difference.low <= 0 <= difference.high:
        return "cannot tell"
    return "above" if difference.low > 0 else "below"
