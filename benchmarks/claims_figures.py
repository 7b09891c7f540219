"""The plots of claims.py, each of as many columns as a page of 800 pixels shows with letters that can be read."""

from pathlib import Path
from typing import Any

import claims_cost
import claims_quality
import claims_reach
import claims_routed
import torch
from claims_training import of_setting
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit.data import Digits
from vit.data.mark_pairs import LONGEST
from vit.support.plotting import ORANGE, plot_style


def four_places() -> tuple[Figure, list[Axes]]:
    """Return a figure of three plots and, at the lower right, an empty place for their legend."""
    figure = Figure(figsize=(7.4, 6.2))
    *plots, empty = figure.subplots(2, 2).flat
    empty.axis("off")
    return figure, [*plots, empty]


@plot_style
def draw_reach(cells: dict[str, Any], path: Path) -> None:
    """Draw accuracy over distance at the least and the greatest depth, and the blocks needed over distance."""
    figure, (shallow, deep, needed, empty) = four_places()
    distances = range(1, LONGEST + 1)
    depths = claims_reach.DEPTHS
    for plot, depth in ((shallow, depths[0]), (deep, depths[-1])):
        plot.set(title=f"{depth} block{'s' if depth > 1 else ''}", ylabel="test accuracy, %", ylim=(40, 103))
        for name, color in claims_reach.COLORS.items():
            found = of_setting(cells, f"{name}, depth {depth}", "accuracy")
            if found:
                means = [100 * sum(of[str(r)] for of in found) / len(found) for r in distances]
                plot.plot(distances, means, color=color, label=name, **marker_of(name))
                within = of_setting(cells, f"{name}, depth {depth}", "within_reach")[0]
                plot.plot(distances, [50 + 50 * within[str(r)] for r in distances], color=color, ls=":", lw=1)
    needed.set(title="blocks needed", ylabel="blocks from mark to mark")
    for name, color in claims_reach.COLORS.items():
        if steps := of_setting(cells, f"{name}, depth 1", "steps_needed"):
            needed.plot(distances, [steps[0][str(r)] for r in distances], color=color, **marker_of(name))
    for plot in (shallow, deep, needed):
        plot.set(xlabel="distance of the marks, patches", xticks=range(1, LONGEST + 1, 2))
    handles, names = shallow.get_legend_handles_labels()
    dotted = shallow.plot([], [], color="black", ls=":", lw=1)
    empty.legend([*handles, *dotted], [*names, "right within reach,\nelse a guess"], loc="center")
    figure.savefig(path)


def marker_of(name: str) -> dict[str, Any]:
    """Return the marker of a line; that of softmax is a ring, since another line lies on it."""
    return {"marker": "o", "ms": 8, "mfc": "none"} if name == "softmax" else {"marker": "o", "ms": 4}


@plot_style
def draw_quality(cells: dict[str, Any], path: Path) -> None:
    """Draw the accuracy over the share of wrong labels, every seed a point."""
    figure = Figure(figsize=(6, 4.2))
    axes = figure.subplots()
    for name, color in claims_quality.COLORS.items():
        found = {share: claims_quality.clean(cells, f"{name}, {share:.0%} wrong") for share in claims_quality.SHARES}
        known = {100 * share: [100 * value for value in values] for share, values in found.items() if values}
        for share, values in known.items():
            axes.scatter([share] * len(values), values, color=color, s=14)
        axes.plot(list(known), [sum(values) / len(values) for values in known.values()], color=color, label=name)
    axes.set(xlabel="training labels that are wrong, %", ylabel="test accuracy, %")
    axes.legend()
    figure.savefig(path)


@plot_style
def draw_routed(cells: dict[str, Any], path: Path) -> None:
    """Draw accuracy over the number of heads, and which classes use which heads in a model of a seed."""
    figure = Figure(figsize=(7.4, 6.2))
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.1))
    accuracy = above.subplots()
    for way, color in claims_routed.COLORS.items():
        found = {k: claims_routed.accuracies(cells, way, k) for k in claims_routed.KEPT}
        means = {k: 100 * sum(values) / len(values) for k, values in found.items() if values}
        accuracy.plot(list(means), list(means.values()), color=color, marker="o", ms=4, label=way)
    if whole := of_setting(cells, claims_routed.ALL, "accuracy"):
        level = 100 * sum(whole) / len(whole)
        accuracy.axhline(level, color="black", ls=":", lw=1, label=claims_routed.ALL)
    heads = claims_routed.HEADS
    accuracy.set(xlabel=f"heads of {heads}", ylabel="test accuracy, %", xticks=claims_routed.KEPT)
    above.legend(loc="outside right center")
    plots = below.subplots(1, claims_routed.MODEL["depth"])
    use = of_setting(cells, f"by image, {claims_routed.FEW} of {heads}", "use")
    for block, plot in enumerate(plots):
        plot.set(title=f"block {block}", xlabel="head", ylabel="digit")
        plot.set(xticks=range(heads), yticks=range(Digits.num_classes))
        plot.grid(False)
        if use:
            shown = plot.imshow(100 * torch.tensor(use[0][block]), cmap="Blues", vmin=0, vmax=100, aspect="auto")
    if use:
        below.colorbar(shown, ax=plots, label="images that use the head, %")
    figure.savefig(path)


@plot_style
def draw_cost(cells: dict[str, Any], path: Path) -> None:
    """Draw time and memory over the tokens, and time over the side of the window."""
    figure, (time, memory, wide, empty) = four_places()
    for plot, key, scale, label in ((time, "seconds", 1e3, "time, ms"), (memory, "bytes", 1e-6, "memory, MB")):
        for name, color in claims_cost.COLORS.items():
            found = claims_cost.medians(cells, "tokens", name, key)
            values = [scale * value for value in found.values()]
            plot.plot(list(found), values, color=color, marker="o", ms=4, label=name)
        plot.set(xlabel="tokens", ylabel=label, xscale="log", yscale="log")
        plot.set_xticks([4096, 16384, 65536], ["4,096", "16,384", "65,536"])
    found = claims_cost.medians(cells, "window", None, "seconds")
    wide.plot(list(found), [1e3 * value for value in found.values()], color=ORANGE, marker="o", ms=4)
    wide.set(xlabel="side of the window, patches", ylabel="time, ms", xscale="log", yscale="log")
    wide.set_xticks(list(found), [str(width) for width in found])
    for plot in (time, memory, wide):
        plot.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        plot.minorticks_off()
    empty.legend(*time.get_legend_handles_labels(), loc="center")
    figure.savefig(path)
