"""The plots of attention.py: accuracy against time, and time and memory against the number of tokens."""

from pathlib import Path
from typing import Any

from attention_cost import MEASURED
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from point_labels import label_points

from vit.support.plotting import BLUE, BROWN, GREEN, GREY, ORANGE, PINK, VIOLET, plot_style

FAMILIES = {
    "all keys, exact": (BLUE, ["softmax", "chunked"]),
    "few keys": (ORANGE, ["window", "neighborhood", "sparse", "topk"]),
    "a summary of the keys": (GREEN, ["linear", "performer", "lowrank", "linformer"]),
    "softmax, changed": (PINK, ["simplified", "talking", "differential", "gated"]),
    "other scores, or routed": (VIOLET, ["additive", "general", "routed"]),
    "no queries and keys": (BROWN, ["convolution", "recurrent"]),
    "controls": (GREY, ["positional", "uniform"]),
}
EMPHASISED = ("softmax", "chunked", "window", "linformer", "linear", "topk")  # the others are thin, without a name
LETTERS = 13  # points
STYLES = [("-", "o"), ("--", "s"), (":", "^"), ("-.", "D")]


@plot_style
def draw_accuracy(result: dict[str, Any], path: Path) -> None:
    """Draw the test accuracy of each mechanism against the seconds of its training."""
    figure = Figure(figsize=(7.4, 5))
    axes = figure.subplots()
    points = {name: (run["seconds"], 100 * run["test_accuracy"]) for name, run in result["training"].items()}
    for family, (color, names) in FAMILIES.items():
        known = [points[name] for name in names if name in points]
        if known:
            axes.scatter(*zip(*known, strict=True), color=color, s=40, label=family, zorder=2)
    slowest, fastest = (choose(seconds for seconds, _ in points.values()) for choose in (max, min))
    axes.set_xlim(fastest - 0.1 * slowest, 1.1 * slowest)
    axes.set(
        title=f"Accuracy and training time of {result['steps']:,} steps\n(one run each: small leads may be chance)"
    )
    axes.set(xlabel="seconds of training", ylabel="test accuracy, %")
    label_points(axes, points)
    axes.legend()
    figure.savefig(path)


@plot_style
def draw_cost(result: dict[str, Any], path: Path) -> None:
    """Draw time and memory of one attention layer against the number of tokens; the table names all mechanisms."""
    figure = Figure(figsize=(7.4, 9.6))
    rows = (("seconds", 1e3, "Time", "ms"), ("bytes", 1e-6, "Memory", "MB"))
    tokens = [int(length) for length in result["cost"]]
    for axes, (what, scale, title, unit) in zip(figure.subplots(2, 1), rows, strict=True):
        axes.set(xscale="log", yscale="log")
        axes.set_xlabel("tokens", fontsize=LETTERS)
        axes.set_title(f"{title} of one layer, {MEASURED}, {unit}", fontsize=LETTERS + 1)
        axes.tick_params(labelsize=LETTERS)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        ends, styles = {}, iter(STYLES * len(EMPHASISED))
        for color, names in FAMILIES.values():
            for name in names:
                points = [*zip(*_points(result, name, what, scale), strict=True)]
                if points and name in EMPHASISED:
                    style, marker = next(styles)
                    axes.plot(*points, color=color, ls=style, marker=marker, ms=5, lw=2, zorder=3)
                    ends[name] = ((points[0][-1], points[1][-1]), color)
                elif points:
                    axes.plot(*points, color=GREY, lw=0.8, alpha=0.5)
        first = min((line.get_xdata()[0] for line in axes.lines), default=tokens[0])
        shown = [length for length in tokens if length >= first]
        axes.set_xticks(shown, [f"{length:,}" for length in shown])
        axes.set_xlim(0.8 * shown[0], 6 * shown[-1])
        axes.minorticks_off()
        if ends:  # a short measurement may know no memory
            _name_ends(axes, ends)
    figure.savefig(path)


def _name_ends(axes: Axes, ends: dict[str, tuple[tuple[int, float], str]]) -> None:
    """Write the name of each line to the right of its end, with a thin line between the two."""
    axes.figure.draw_without_rendering()
    known = dict(sorted(ends.items(), key=lambda item: item[1][0][1]))
    heights = axes.transData.transform([end for end, _ in known.values()])[:, 1]
    column = axes.transData.transform((1.7 * max(tokens for (tokens, _), _ in known.values()), 1))[0]
    places = _spread_out(heights.tolist(), 0.22 * axes.figure.dpi)
    for (name, (end, color)), height in zip(known.items(), places, strict=True):
        line = {"arrowstyle": "-", "color": color, "lw": 0.6, "relpos": (0, 0.5)}
        place = axes.transData.inverted().transform((column, height))
        axes.annotate(name, end, place, arrowprops=line, va="center", color=color, fontsize=LETTERS)


def _spread_out(places: list[float], gap: float) -> list[float]:
    """Move ascending places apart to a gap at least, each group around its mean.

    >>> _spread_out([1.0, 1.0, 9.0], 2.0)
    [0.0, 2.0, 9.0]
    """
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while len(groups) > 1 and _lowest(groups[-1], gap) < _lowest(groups[-2], gap) + len(groups[-2]) * gap:
            last = groups.pop()
            groups[-1] += last
    return [_lowest(group, gap) + gap * number for group in groups for number in range(len(group))]


def _lowest(group: list[float], gap: float) -> float:
    return sum(group) / len(group) - gap * (len(group) - 1) / 2


def _points(result: dict[str, Any], name: str, what: str, scale: float) -> list[tuple[int, float]]:
    costs = {int(tokens): costs[name] for tokens, costs in result["cost"].items() if costs.get(name)}
    points = [(tokens, scale * cost[what][MEASURED]) for tokens, cost in costs.items()]
    # Less than two megabytes cannot be told from the other memory of the process.
    return [(tokens, value) for tokens, value in points if what == "seconds" or value >= 2]
