"""The plot of results_page.py: test accuracy against the petaFLOP of the training."""

import statistics
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import mean, values
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from point_labels import label_points

from vit.support.plotting import BLUE, GREEN, GREY, ORANGE, plot_style

# Kind of a point: colour, marker, name in the legend.
KINDS = {
    "measured": (BLUE, "o", "ours (bar: deviation over seeds)"),
    "peer": (GREEN, "s", "other libraries, measured beside ours"),
    "pure": (ORANGE, "D", "published, plain ViT"),
    "other": (GREY, "^", "published, hybrids and convolutional\n(bar: range of the estimate)"),
}
# Names of points that are not those of their recipes.
NAMES = {
    "cifar10_quick": "ten minutes",
    "cifar10": "one hour",
    "cifar10_overlap": "hour, overlap",
    "cifar10_night_overlap": "2.4 hours",
    "cifar10_showcase": "packaged",
    "timm ViT 96x6, torchvision loader, AdamW, 10 min": "timm's model, AdamW, ten minutes",
    "timm ViT 96x6, strongest recipe, 10 min": "timm's model, the strongest recipe found",
}
FIRST_STAGES = ("cifar10_45_minutes", "cifar10_night")  # of recipes that have points
ACCURACIES = [20, 40, 50, 60, 70, 75, 80, 85, 90, 92, 94, 95, 96, 97, 98, 99]


def measured_points(groups: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a point for each recipe that was trained and tested: name, kind, accuracy with its spread, petaFLOP."""
    known = {
        name: group
        for name, group in groups.items()
        if values(group, "test_accuracy") and mean(group, "petaflop") > 0 and group[0]["recipe"] not in FIRST_STAGES
    }
    short = [group[0]["recipe"].split(",")[0] for group in known.values()]
    points = []
    for (name, group), recipe in zip(known.items(), short, strict=True):
        unique = recipe if short.count(recipe) == 1 else name.removesuffix(", cpu" * bool(group[0].get("peer")))
        accuracies = values(group, "test_accuracy", 100)
        points.append(
            {
                "name": NAMES.get(unique, unique),
                "kind": "peer" if group[0].get("peer") else "measured",
                "accuracy": statistics.mean(accuracies),
                "deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
                "petaflop": [mean(group, "petaflop")] * 2,
            }
        )
    return points


@plot_style
def draw_accuracy(points: list[dict[str, Any]], path: Path) -> Figure:
    """Draw test accuracy against petaFLOP, on a scale on which each halving of the error is the same step."""
    figure = Figure(figsize=(9, 8.8))
    axes = figure.subplots()
    _scales(axes, points)
    places, styles, ends = {}, {}, []
    for kind, (color, marker, label) in KINDS.items():
        chosen = [point for point in points if point["kind"] == kind]
        here = kind in ("measured", "peer")
        for point in chosen:
            x, y, deviation = _middle(point), point["accuracy"], point.get("deviation", 0.0)
            axes.plot(point["petaflop"], [y, y], color=color, lw=1.2, zorder=2)
            axes.plot([x, x], [y - deviation, y + deviation], color=color, lw=1.2, zorder=2)
            text = f"{point['name']}, {y:.1f} %" if here else point["name"]
            places[text] = x, y
            styles[text] = {"color": color} | ({"weight": "bold"} if here else {})
            ends += [(bound, y) for bound in point["petaflop"]] + [(x, y - deviation), (x, y + deviation)]
        if chosen:
            middles, accuracies = [_middle(point) for point in chosen], [point["accuracy"] for point in chosen]
            size = 30 if kind == "other" else 55
            axes.scatter(middles, accuracies, color=color, marker=marker, s=size, lw=0, label=label, zorder=3)
    axes.legend(loc="upper left")
    label_points(axes, places, styles, ends)
    figure.savefig(path)
    return figure


def _middle(point: dict[str, Any]) -> float:
    """Return the geometric mean of the bounds of a point's petaFLOP."""
    low, high = point["petaflop"]
    return (low * high) ** 0.5


def _scales(axes: Axes, points: list[dict[str, Any]]) -> None:
    """Set logarithmic axes around all points, in petaFLOP and in errors."""
    low, high = (choose(point["accuracy"] for point in points) for choose in (min, max))
    axes.set_yscale("function", functions=(_from_accuracy, _to_accuracy))
    axes.set_ylim(_to_accuracy(_from_accuracy(low) - 0.12), _to_accuracy(_from_accuracy(high) + 0.12))
    shown = [tick for tick in ACCURACIES if axes.get_ylim()[0] <= tick <= axes.get_ylim()[1]]
    axes.set_yticks(shown, [str(tick) for tick in shown])
    least, most = (choose(bound for point in points for bound in point["petaflop"]) for choose in (min, max))
    axes.set(xscale="log", xlim=(least / 3, 6 * most), xlabel="petaFLOP of training")
    axes.set_ylabel("test accuracy, % (log scale of the error)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.minorticks_off()
    axes.set_title("CIFAR-10 from scratch: test accuracy against compute", loc="left")
    axes.set_axisbelow(True)


def _from_accuracy(accuracy: np.ndarray | float) -> np.ndarray | float:
    return -np.log10(np.maximum(100 - np.asarray(accuracy), 1e-3))


def _to_accuracy(height: np.ndarray | float) -> np.ndarray | float:
    return 100 - 10.0 ** -np.asarray(height)
