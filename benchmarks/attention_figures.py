"""The plots of attention.py: accuracy against time, and time and memory against the number of tokens."""

from pathlib import Path
from typing import Any

from attention_cost import MEASURED
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from point_labels import label_points

from vit.support.plotting import BLUE, BROWN, GREEN, GREY, ORANGE, PINK, VIOLET, plot_style

FAMILIES = {
    "exact": (BLUE, ["softmax", "chunked"]),
    "few keys": (ORANGE, ["window", "neighborhood", "sparse", "topk"]),
    "through a summary": (GREEN, ["linear", "performer", "lowrank", "linformer"]),
    "other weights": (PINK, ["simplified", "talking", "differential", "gated"]),
    "other scores": (VIOLET, ["additive", "general", "routed"]),
    "rivals": (BROWN, ["convolution", "recurrent"]),
    "controls": (GREY, ["positional", "uniform"]),
}
STYLES = [("-", "o"), ("--", "s"), (":", "^"), ("-.", "D")]


@plot_style
def draw_accuracy(result: dict[str, Any], path: Path) -> None:
    """Draw the test accuracy of each mechanism against the seconds of its training."""
    figure = Figure(figsize=(9, 5))
    axes = figure.subplots()
    points = {name: (run["seconds"], 100 * run["test_accuracy"]) for name, run in result["training"].items()}
    for family, (color, names) in FAMILIES.items():
        known = [points[name] for name in names if name in points]
        if known:
            axes.scatter(*zip(*known, strict=True), color=color, s=40, label=family, zorder=2)
    slowest, fastest = (choose(seconds for seconds, _ in points.values()) for choose in (max, min))
    axes.set_xlim(fastest - 0.1 * slowest, 1.1 * slowest)
    axes.set(xlabel="seconds of training (the same number of steps)", ylabel="test accuracy, %")
    label_points(axes, points)
    axes.legend()
    figure.savefig(path)


@plot_style
def draw_cost(result: dict[str, Any], path: Path) -> None:
    """Draw time and memory of one attention layer against the number of tokens, a column for each family."""
    measured = next(iter(result["cost"].values()))
    families = {family: (color, names) for family, (color, names) in FAMILIES.items() if measured.keys() & {*names}}
    figure = Figure(figsize=(13, 6.6))
    grid = figure.subplots(2, len(families), sharex=True, sharey="row", squeeze=False)
    rows = (("seconds", 1e3, "time, ms"), ("bytes", 1e-6, "memory, MB"))
    for row, (what, scale, label) in zip(grid, rows, strict=True):
        row[0].set_ylabel(f"{label} ({MEASURED})")
        for axes, (family, (color, names)) in zip(row, families.items(), strict=True):
            if "softmax" not in names:
                _line(axes, result, "softmax", what, scale, color=GREY, ls="-", lw=1)
            for name, (style, marker) in zip(names, STYLES, strict=False):
                _line(axes, result, name, what, scale, color=color, ls=style, marker=marker, ms=5)
            axes.set(xscale="log", yscale="log")
            axes.set_title(family if what == "seconds" else None)
            axes.legend(loc="upper left")
    tokens = [int(length) for length in result["cost"]]
    for axes in grid[1]:
        axes.set_xlabel("tokens")
        axes.set_xticks(tokens, [f"{length:,}" for length in tokens])
        axes.minorticks_off()
    figure.savefig(path)


def _line(axes: Axes, result: dict[str, Any], name: str, what: str, scale: float, **style: Any) -> None:
    costs = {int(tokens): costs[name] for tokens, costs in result["cost"].items() if costs.get(name)}
    points = [(tokens, scale * cost[what][MEASURED]) for tokens, cost in costs.items()]
    # Less than a megabyte cannot be told from the other memory of the process.
    points = [(tokens, value) for tokens, value in points if what == "seconds" or value >= 1]
    axes.plot(*zip(*points, strict=True), label=name, **style)
