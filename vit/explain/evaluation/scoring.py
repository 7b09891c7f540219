"""Scores of methods on a model and images, always beside controls.

Control maps ignore the model. Further controls are made from a method itself: the mean of its maps of other images, and
its maps of untrained models. ``faithfulness.py`` has the measures of single images, ``ground_truth.py`` those that
compare with a known answer.
"""

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vit.explain.evaluation.confidence import (
    Interval,
    check_clusters,
    exact_share_interval,
    mean_interval,
    mean_of_clusters,
)
from vit.explain.evaluation.faithfulness import Curves, Removal, gini, removal_curves, saco
from vit.explain.evaluation.ground_truth import energy_inside, intersection_over_union, pointing_game
from vit.explain.evaluation.printed_table import Table
from vit.explain.evaluation.shuffled import mean_of_others, untrained_maps
from vit.explain.maps import CONTROLS, METHODS, Subject, signed_map
from vit.explain.maps.fewer_tokens import can_drop
from vit.explain.maps.slope import check_slope
from vit.explain.memory import PeakMemory
from vit.support.precision import in_double

ERROR = 0.05  # probability that any comparison of a table is wrong
FEWEST = 10  # images that a comparison of methods needs
AREAS: dict[Removal, str] = {"token_drop": "drop", "mean_fill": "fill"}  # columns of the area between two curves
SHARES = ("hits",)  # measures that are 0 or 1 for most images: their intervals are exact
OWN = ("mean map", "untrained")  # controls that are made from a method


@dataclass
class Scores(Table):
    """A table with a row for each method, and the values of single images behind its means.

    Attributes:
        values: The value of each image, or of each cluster of images, by method and measure. The name of a control that
            is made from a method has both names, such as "rollout: untrained".
    """

    values: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def difference(self, method: str, other: str, measure: str, confidence: float = 0.95) -> Interval:
        """Return the difference of a measure between two methods, paired by image."""
        differences = self.values[method][measure] - self.values[other][measure]
        if measure not in SHARES:
            return mean_interval(differences, confidence)
        return Interval(*(2 * bound - 1 for bound in _interval(measure, (differences + 1) / 2, confidence)))

    def controls(self, method: str, measure: str) -> list[str]:
        """Return the names of the controls of a method that have this measure."""
        names = [*CONTROLS, *(f"{method}: {own}" for own in OWN)]
        return [name for name in names if measure in self.values.get(name, {})]

    def against_controls(self, method: str, measure: str) -> str:
        """Say whether a measure is clearly above that of every control, or clearly below that of one.

        The answers for all methods hold together with 95 % confidence.
        """
        controls = self.controls(method, measure)
        confidence = 1 - ERROR / (len(self._methods()) * len(controls))
        found = {control: self.difference(method, control, measure, confidence) for control in controls}
        lowest, nearest = (min(found, key=lambda name: found[name][bound]) for bound in (2, 1))
        if len(self.values[method][measure]) < FEWEST:
            return "cannot tell"
        if found[lowest].high < 0:
            return f"below {_short(lowest)}"
        return "above" if found[nearest].low > 0 else f"cannot tell ({_short(nearest)})"

    def recommended(self, measure: str) -> list[str]:
        """Return the methods that are not clearly below the best one, by the mean of a measure, best first.

        Each method must also be clearly above every control. If the best one is not, the list is empty. All comparisons
        together hold with 95 % confidence: each uses the Bonferroni level (Dunn 1961). With fewer than 10 images, the
        list is empty.
        """
        means = {m: self.values[m][measure].mean().item() for m in self._methods()}
        methods = sorted(means, key=means.get, reverse=True)
        if not methods or len(self.values[methods[0]][measure]) < FEWEST:
            return []
        controls = {method: self.controls(method, measure) for method in methods}
        comparisons = math.comb(len(methods), 2) + sum(map(len, controls.values()))  # any two may be the best ones
        confidence = 1 - ERROR / max(comparisons, 1)

        def clearly_above(method: str, other: str) -> bool:
            return self.difference(method, other, measure, confidence).low > 0

        sure = [method for method in methods if all(clearly_above(method, control) for control in controls[method])]
        if methods[0] not in sure:
            return []
        return [method for method in sure if not clearly_above(methods[0], method)]

    def _methods(self) -> list[str]:
        return [name for name in self.values if name not in CONTROLS and ": " not in name]


def score(
    model: nn.Module,
    loader: Iterable[Any],
    methods: Sequence[str] | None = None,
    *,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
    clusters: Tensor | Sequence[int] | None = None,
) -> Scores:
    """Score how well the maps of each method mark the patches that predictions depend on: a table with 95 % intervals.

    Maps explain the predicted class. Columns, each a mean over images (see ``faithfulness.py``):

    - ``drop``: area between two probability curves, least and most relevant tokens dropped first. High is good; random
      maps get 0 on average. ``drop most first`` and ``drop least first`` are the areas under the two curves.
    - ``fill``, ``fill most first``, ``fill least first``: the same with patches painted in the mean colour.
    - ``positive``, ``negative``: share of predictions kept, most or least relevant patches painted first.
    - ``SaCo``: whether the values are right, not only their order, from -1 to 1.
    - ``Gini``: concentration of the map on few patches; neither good nor bad.
    - ``mean map``, ``untrained``: ``drop`` (or ``fill``) of two controls of the method: the mean of its maps of
      the other images so far, and its maps of untrained models of the same architecture (weights shuffled).
    - ``against controls``: whether ``drop`` (or ``fill``) is clearly above that of every control on the same images, or
      which control it is not clearly above. The answers for all methods hold together with 95 % confidence.
    - ``ms``, ``MB``: time and peak memory of tensors for a map, both per image of a batch.

    Args:
        model: A ViT classifier in eval mode.
        loader: Batches of images (B, C, H, W), or pairs of images and labels; labels are not needed. Give 200
            images or more, so that the intervals tell methods apart.
        methods: Keys of ``METHODS``; None is all that fit the model. Missing control maps are added.
        grid: Rows and columns of patches, checked against the detected grid (see ``explain``).
        num_prefix_tokens: Number of tokens before the patches, checked against the detected number.
        clusters: A number for each image, the same for images that depend on each other, such as the frames of a
            video. Intervals are then over the means of the clusters. None takes all images as independent.

    Raises:
        ValueError: If a given method is unknown or does not fit the model, or there is no image.
    """
    fitting, methods = methods is None, _with_controls(methods)
    parts: dict[str, dict[str, list[Tensor]]] = {}
    seconds, megabytes = dict.fromkeys(methods, 0.0), {}
    earlier: dict[str, list[Tensor]] = {}  # maps of each method in the batches before
    removals: tuple[Removal, ...] = ()
    count = 0
    for batch in loader:
        images = batch if isinstance(batch, Tensor) else batch[0]
        subject = Subject(model, images, grid=grid, num_prefix_tokens=num_prefix_tokens)
        of_batch = (*(["token_drop"] if can_drop(subject) else []), "mean_fill")
        removals = removals or of_batch
        if of_batch != removals:
            raise ValueError(
                f"tokens of the first batch are removed by {removals[0]}, and those of a later one by {of_batch[0]}, "
                "as their size differs or its attention cannot be read: give images of one size, or score it alone"
            )
        if fitting and not count:
            methods = [method for method in methods if _fits(method, subject)]
        _fill_caches(subject)  # so that no method is timed with what others share
        untrained = _untrained(subject, methods, count)
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
            _append(parts, method, _measure(subject, maps, removals))
            for own, control in _own_controls(method, maps, untrained, earlier.setdefault(method, [])):
                _append(parts, own, _areas(removal_curves(subject, control, removals[0]), AREAS[removals[0]]))
    if not count:
        raise ValueError("the loader gave no images: score needs at least one batch")
    costs = {method: {"ms": 1000 * seconds[method] / count, "MB": megabytes[method]} for method in methods}
    return _table(parts, methods, AREAS[removals[0]], count, clusters, costs)


def localise(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    masks: Tensor,
    methods: Sequence[str] | None = None,
    *,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
    clusters: Tensor | Sequence[int] | None = None,
) -> Scores:
    """Score how well the maps of each method find the place that decides the label: a table with 95 % intervals.

    Columns: ``hits`` (the highest patch is inside, the pointing game; its intervals are exact), ``energy`` (share of
    the map inside), ``IoU`` (overlap of the highest patches with the place), and those of ``score`` that compare the
    hits with controls.

    Args:
        model: A ViT classifier in eval mode.
        images: Images, (B, C, H, W), passed 100 at a time.
        labels: The classes to explain, (B,).
        masks: The share of each patch inside the place, (B, rows, columns), as ``cells_of_boxes`` returns it.
        methods: Keys of ``METHODS``; None is all. Missing control maps are added.
        grid: Rows and columns of patches, checked against the detected grid (see ``explain``).
        num_prefix_tokens: Number of tokens before the patches, checked against the detected number.
        clusters: A number for each image, as in ``score``.
    """
    measures = {"hits": pointing_game, "energy": energy_inside, "IoU": intersection_over_union}
    methods, parts = _with_controls(methods), {}
    earlier: dict[str, list[Tensor]] = {}
    done = 0
    for part, asked, inside in zip(images.split(100), labels.split(100), masks.split(100), strict=True):
        subject = Subject(model, part, asked, None, grid, num_prefix_tokens)
        untrained = _untrained(subject, methods, done)
        done += len(part)
        for method in methods:
            maps = signed_map(method, subject)
            own = _own_controls(method, maps, untrained, earlier.setdefault(method, []))
            for name, found in ((method, maps), *own):
                _append(parts, name, {m: measure(found.clamp(min=0), inside) for m, measure in measures.items()})
    return _table(parts, methods, "hits", len(images), clusters, {})


def _fill_caches(subject: Subject) -> None:
    """Find what several methods need of a subject; what it refuses is refused again by the methods."""
    _ = subject.contrast
    with suppress(ValueError):
        subject.slope_is_measured = check_slope(subject)
    for name in ("without_skip", "without_patches", "lost_tokens", "score_readout"):
        with suppress(ValueError):
            getattr(subject, name)


def _append(parts: dict[str, dict[str, list[Tensor]]], name: str, measured: dict[str, Tensor]) -> None:
    for measure, numbers in measured.items():
        parts.setdefault(name, {}).setdefault(measure, []).append(numbers.cpu())


def _untrained(subject: Subject, methods: Sequence[str], first: int) -> dict[str, Tensor]:
    return untrained_maps(subject, [method for method in methods if method not in CONTROLS], first)


def _own_controls(
    method: str, maps: Tensor, untrained: dict[str, Tensor], earlier: list[Tensor]
) -> list[tuple[str, Tensor]]:
    """Return names and maps of the controls that are made from a method; control maps have none.

    The maps are added to those of the batches before.
    """
    if method in CONTROLS:
        return []
    of_method = zip(OWN, (mean_of_others(maps, earlier), untrained[method]), strict=True)
    earlier.append(maps)
    return [(f"{method}: {own}", control) for own, control in of_method]


def _table(
    parts: dict[str, dict[str, list[Tensor]]],
    methods: Sequence[str],
    compared: str,
    count: int,
    clusters: Tensor | Sequence[int] | None,
    costs: dict[str, dict[str, float]],
) -> Scores:
    """Return the table of all methods, whose controls are compared by one measure."""
    clusters = check_clusters(clusters, count)
    scores = Scores([], f"{count} images; mean (95 % interval)")
    for name, measured in parts.items():
        values = {measure: torch.cat(numbers) for measure, numbers in measured.items()}
        if clusters is not None:
            values = {measure: mean_of_clusters(in_double(numbers), clusters) for measure, numbers in values.items()}
            scores.note = f"{count} images in {len(clusters.unique())} clusters; mean of clusters (95 % interval)"
        scores.values[name] = values
    for method in methods:
        row = {name: _interval(name, numbers) for name, numbers in scores.values[method].items()}
        of_controls = {own: scores.values.get(f"{method}: {own}") for own in OWN}
        row |= {own: _interval(compared, values[compared]) for own, values in of_controls.items() if values}
        if method not in CONTROLS:
            row["against controls"] = scores.against_controls(method, compared)
        scores.rows.append({"method": method} | row | costs.get(method, {}))
    return scores


def _interval(measure: str, values: Tensor, confidence: float = 0.95) -> Interval:
    if measure in SHARES:
        return Interval(*exact_share_interval(in_double(values).sum().item(), len(values), confidence))
    return mean_interval(values, confidence)


def _fits(method: str, subject: Subject) -> bool:
    try:
        signed_map(method, subject)
    except ValueError:
        return False
    return True


def _areas(curves: Curves, name: str) -> dict[str, Tensor]:
    """Return the area between two curves and the areas under them, by the names of their columns."""
    return {
        name: curves.area_between,
        f"{name} most first": curves.area_most_first,
        f"{name} least first": curves.area_least_first,
    }


def _measure(subject: Subject, maps: Tensor, removals: Sequence[Removal]) -> dict[str, Tensor]:
    measured = {}
    for removal in removals:
        curves = removal_curves(subject, maps, removal)
        measured |= _areas(curves, AREAS[removal])
    measured |= {"positive": curves.positive, "negative": curves.negative}
    return measured | {"SaCo": saco(subject, maps), "Gini": gini(maps)}


def _with_controls(methods: Sequence[str] | None) -> list[str]:
    chosen = [*dict.fromkeys(METHODS if methods is None else methods)]  # each once, however often it is named
    return chosen + [control for control in CONTROLS if control not in chosen]


def _short(control: str) -> str:
    return control.rpartition(": ")[2]
