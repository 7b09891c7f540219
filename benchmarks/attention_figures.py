"""The plots of attention.py: accuracy against time, and time and memory against the number of tokens."""

from pathlib import Path
from typing import Any

from attention_cost import MEASURED
from labels import label_points
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by colour-blind readers.
FAMILIES = {
    "exact": ("#0072B2", ["softmax", "chunked"]),
    "few keys": ("#D55E00", ["window", "neighborhood", "sparse", "topk"]),
    "through a summary": ("#009E73", ["linear", "performer", "lowrank", "linformer"]),
    "other weights": ("#CC79A7", ["simplified", "talking", "differential", "gated"]),
}
STYLES = [("-", "o"), ("--", "s"), (":", "^"), ("-.", "D")]
GREY = "#8a8a8a"


def draw_accuracy(result: dict[str, Any], path: Path) -> None:
    """Test accuracy of each mechanism against the seconds its training took."""
    figure = Figure(figsize=(9, 5), layout="constrained")
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
    axes.legend(frameon=False)
    _plain(axes)
    figure.savefig(path, dpi=120)


def draw_cost(result: dict[str, Any], path: Path) -> None:
    """Time and memory of one attention layer against the number of tokens, a column for each family."""
    figure = Figure(figsize=(13, 6.6), layout="constrained")
    grid = figure.subplots(2, len(FAMILIES), sharex=True, sharey="row", squeeze=False)
    rows = (("seconds", 1e3, "time, ms"), ("bytes", 1e-6, "memory, MB"))
    for row, (what, scale, label) in zip(grid, rows, strict=True):
        row[0].set_ylabel(f"{label} ({MEASURED})")
        for axes, (family, (color, names)) in zip(row, FAMILIES.items(), strict=True):
            if "softmax" not in names:
                _line(axes, result, "softmax", what, scale, color=GREY, ls="-", lw=1)
            for name, (style, marker) in zip(names, STYLES, strict=False):
                _line(axes, result, name, what, scale, color=color, ls=style, marker=marker, ms=5)
            axes.set(xscale="log", yscale="log")
            axes.set_title(family if what == "seconds" else None)
            axes.legend(frameon=False, loc="upper left")
            axes.grid(color="#e5e5e5", lw=0.6)
            _plain(axes)
    tokens = [int(length) for length in result["cost"]]
    for axes in grid[1]:
        axes.set_xlabel("tokens")
        axes.set_xticks(tokens, [f"{length:,}" for length in tokens])
        axes.minorticks_off()
    figure.savefig(path, dpi=120)


def _line(axes: Axes, result: dict[str, Any], name: str, what: str, scale: float, **style: Any) -> None:
    costs = {int(tokens): costs[name] for tokens, costs in result["cost"].items() if costs.get(name)}
    # Less than a megabyte is lost among the pages of the process.
    points = [(tokens, scale * cost[what][MEASURED]) for tokens, cost in costs.items()]
    points = [(tokens, value) for tokens, value in points if what == "seconds" or value >= 1]
    axes.plot(*zip(*points, strict=True), label=name, **style)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
