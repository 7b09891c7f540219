"""The picture of ROC and precision-recall curves: each class against the rest, and the mean of the classes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from vit.objectives.classify.curves import ClassCurves, curves, has_curves, threshold_scores
from vit.support.captioned import trim_names
from vit.support.fonts import drawable
from vit.support.picture_files import save_figure
from vit.support.plotting import GREY, SERIES, plain_text, plot_style

MOST_COLOURED = 12  # classes with a colour and a name; of more, only those of the lowest areas have them
LOWEST = 5
NAME_LETTERS = 24
MOST_NAMED = 2  # classes without a curve that the title names
GRID = np.linspace(0, 1, 501)  # of the mean curves


@plot_style
@plain_text
def draw_curves(
    probabilities: Tensor,
    targets: Tensor,
    scores: Mapping[str, Any],
    shown: Sequence[int],
    title: str,
    path: Path,
    threshold: float | None = None,
) -> None:
    """Draw true over false positives, and precision over recall.

    Args:
        probabilities: Of each class, (N, C).
        targets: Whether each image is of each class, boolean (N, C).
        scores: The scores of the evaluation, whose "classes" have the areas.
        shown: Numbers of the classes to draw. Of two classes, one is enough, as the curves of the other say the same.
        title: Beginning of the title.
        path: File of the picture.
        threshold: Probability whose point is marked, if one class is shown.
    """
    known = [number for number in shown if has_curves(probabilities[:, number], targets[:, number])]
    drawn = {number: scores["classes"][number] for number in known}
    found = {number: curves(probabilities[:, number], targets[:, number]) for number in drawn}
    figure = Figure(figsize=(12, 5))
    panels = roc, precision_recall = figure.subplots(1, 2)
    with drawable([row["name"] for row in drawn.values()]) as names:
        labels = dict(zip(drawn, trim_names(names, NAME_LETTERS), strict=True))
        for number, style in _styles(drawn).items():
            curve, area = found[number], drawn[number]["roc_auc"]
            label = f"{labels[number]}: {area:.3f}, {drawn[number]['average_precision']:.3f}"
            roc.plot(
                curve.false_positive_rate, curve.true_positive_rate, **style, label=label if style["lw"] > 1 else None
            )
            precision_recall.step(curve.recall, curve.precision, where="post", **style)
        if len(drawn) > 1:
            _draw_means(panels, [*found.values()], [*drawn.values()])
        roc.plot([0, 1], [0, 1], color=GREY, ls=":", lw=1)
        if threshold is not None and drawn:
            _mark(panels, probabilities[:, shown[0]], targets[:, shown[0]], threshold)
        roc.set(title="ROC", xlabel="false positives, share of the other images", ylabel="true positives (recall)")
        precision_recall.set(title="Precision and recall", xlabel="recall", ylabel="precision")
        for axes in panels:
            axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
        figure.suptitle(f"{title}: each class against the rest{_without_curve(shown, drawn, scores)}")
        if drawn:
            figure.legend(loc="outside right center", title="area below: ROC, precision", fontsize=9)
        save_figure(figure, path)


def _without_curve(shown: Sequence[int], drawn: Mapping[int, Any], scores: Mapping[str, Any]) -> str:
    """Return the end of the title, which tells which classes have no curve."""
    without = [scores["classes"][number]["name"] for number in shown if number not in drawn]
    if not without:
        return ""
    with drawable(without) as names:
        named = ", ".join(trim_names(names, NAME_LETTERS)) if len(names) <= MOST_NAMED else f"{len(names)} classes"
    return f"; no curve of {named}, as none or all of the images show it"


def _styles(drawn: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the line of each class: thin and grey for all but the lowest areas, if there are many."""
    lowest = sorted(drawn, key=lambda number: drawn[number]["roc_auc"])[:LOWEST]
    named = [*drawn] if len(drawn) <= MOST_COLOURED else lowest
    styles = {number: {"color": GREY, "lw": 0.5, "alpha": 0.5} for number in drawn if number not in named}
    for place, number in enumerate(named):
        styles[number] = {
            "color": SERIES[place % len(SERIES)],
            "ls": "-" if place < len(SERIES) else "--",
            "lw": 1.4,
        }
    return styles


def _draw_means(panels: Sequence[Axes], found: Sequence[ClassCurves], rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the mean curves over the classes, each read at the same places."""
    true_positives = [np.interp(GRID, curve.false_positive_rate, curve.true_positive_rate) for curve in found]
    rising = np.append(0, np.mean(true_positives, axis=0))
    # At each recall, the precision of the last point that reaches it, as a precision holds up to its recall.
    precision = [curve.precision.numpy()[_last_reaching(curve.recall.numpy())] for curve in found]
    roc_area, precision_area = (np.mean([row[name] for row in rows]) for name in ("roc_auc", "average_precision"))
    label = f"mean: {roc_area:.3f}, {precision_area:.3f}"
    panels[0].plot(np.append(0, GRID), rising, color="black", lw=2, label=label)
    panels[1].plot(GRID, np.mean(precision, axis=0), color="black", lw=2)


def _last_reaching(recall: np.ndarray) -> np.ndarray:
    """Return, for each place of the grid, the last point whose recall reaches it; recall falls from point to point."""
    return len(recall) - 1 - np.searchsorted(recall[::-1], GRID)


def _mark(panels: Sequence[Axes], probabilities: Tensor, is_positive: Tensor, threshold: float) -> None:
    """Mark the point of a threshold in both panels."""
    at = threshold_scores(probabilities, is_positive, threshold)
    label = f"threshold {100 * threshold:.1f} %"
    points = ((1 - at["specificity"], at["sensitivity"]), (at["sensitivity"], at["precision"]))
    for axes, (x, y) in zip(panels, points, strict=True):
        if y is not None:
            axes.plot(x, y, "o", color="black", ms=7, label=label if axes is panels[0] else None)
