"""The plots of claims.py, each of as many columns as a page of 800 pixels shows with letters that can be read."""

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import claims_cost
import claims_norms
import claims_quality
import claims_reach
import claims_rivals as rivals
import claims_routed
import claims_scale as scale
import numpy as np
import torch
from claims_training import difference, mean_interval, of_setting
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from vit.data import Digits
from vit.data.mark_pairs import LONGEST
from vit.support.plotting import GREY, ORANGE, plot_style

MARKERS = "os^DvPX*"  # of lines, in the order of their colours: grey print keeps them apart


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
        for number, (name, color) in enumerate(claims_reach.COLORS.items()):
            found = of_setting(cells, f"{name}, depth {depth}", "accuracy")
            if found:
                means = [100 * sum(of[str(r)] for of in found) / len(found) for r in distances]
                plot.plot(distances, means, color=color, label=name, **marker_of(name, number))
                within = of_setting(cells, f"{name}, depth {depth}", "within_reach")[0]
                plot.plot(distances, [50 + 50 * within[str(r)] for r in distances], color=color, ls=":", lw=1)
    needed.set(title="blocks needed", ylabel="blocks from mark to mark")
    for number, (name, color) in enumerate(claims_reach.COLORS.items()):
        if steps := of_setting(cells, f"{name}, depth 1", "steps_needed"):
            needed.plot(distances, [steps[0][str(r)] for r in distances], color=color, **marker_of(name, number))
    for plot in (shallow, deep, needed):
        plot.set(xlabel="distance of the marks, patches", xticks=range(1, LONGEST + 1, 2))
    handles, names = shallow.get_legend_handles_labels()
    dotted = shallow.plot([], [], color="black", ls=":", lw=1)
    empty.legend([*handles, *dotted], [*names, "right within reach,\nelse a guess"], loc="center")
    figure.savefig(path)


def marker_of(name: str, number: int) -> dict[str, Any]:
    """Return the marker of a line; that of softmax is a ring, since another line lies on it."""
    return {"marker": "o", "ms": 8, "mfc": "none"} if name == "softmax" else {"marker": MARKERS[number], "ms": 4}


@plot_style
def draw_rivals(cells: dict[str, Any], path: Path, sizes: Iterable[int] = rivals.SIZES) -> None:
    """Draw accuracy over the number of images, every seed a point, and how far each rival is from softmax."""
    figure = Figure(figsize=(7.4, 7))
    axes = figure.subplots(2, 1, sharex=True)
    for place, (name, color) in enumerate(rivals.COLORS.items()):
        found = {size: [100 * value for value in rivals.accuracies(cells, name, size)] for size in sizes}
        found = {size: values for size, values in found.items() if values}
        for size, values in found.items():
            axes[0].scatter([size] * len(values), values, color=color, s=8)
        means = [statistics.mean(values) for values in found.values()]
        axes[0].plot(list(found), means, color=color, marker=MARKERS[place], ms=6, mfc="none", label=name)
        gaps = {
            size: difference(values, softmax)
            for size, values in found.items()
            if name != "softmax"
            and len(values) > 1
            and len(softmax := [100 * value for value in rivals.accuracies(cells, "softmax", size)]) > 1
        }
        if gaps:
            shifted = [size * 1.06 ** (place - 2) for size in gaps]  # side by side, so that no interval hides another
            means, lows, highs = zip(*gaps.values(), strict=True)
            ends = [[mean - low for mean, low in zip(means, lows, strict=True)]]
            ends.append([high - mean for mean, high in zip(means, highs, strict=True)])
            axes[1].errorbar(shifted, means, yerr=ends, color=color, marker=MARKERS[place], ms=4, capsize=3, label=name)
    axes[1].axhline(0, color=rivals.COLORS["softmax"], lw=1)
    axes[0].set(title="Accuracy: mean (line) and each seed (small dots)", ylabel="test accuracy, %")
    axes[1].set(
        title="Lead over softmax (the blue line), with its 95 % interval", xlabel="training images", ylabel="points"
    )
    for plot in axes:
        plot.set(xscale="log")
        plot.set_xticks([*sizes], [f"{size:,}" for size in sizes])
        plot.minorticks_off()
    axes[0].legend(loc="lower right")
    figure.savefig(path)


@plot_style
def draw_scale(cells: dict[str, Any], path: Path) -> None:
    """Draw loss over compute with the law and the larger model, and loss over images at equal steps and compute."""
    figure = Figure(figsize=(7.4, 6.2))
    *axes, empty = figure.subplots(2, 2, sharey=True).flat
    empty.axis("off")
    seeds = scale.seeds_of(cells)
    for number, (width, color) in enumerate(scale.COLORS.items()):
        style = {"color": color, "marker": MARKERS[number]}
        found = [point for seed in seeds for point in scale.best_of_widths(cells, seed, scale.SHARES[-1], width)]
        if found:
            axes[0].scatter(*zip(*in_gflop(found), strict=True), **style, s=14, zorder=3)
        for plot, read in zip(axes[1:], (scale.at_equal_steps, scale.at_equal_compute), strict=True):
            of_width = [cell for cell in cells.values() if cell["width"] == width]
            shares = sorted({cell["share"] for cell in of_width}) if width in scale.WIDTHS or plot is axes[1] else []
            means = [statistics.mean(read(cell) for cell in of_width if cell["share"] == share) for share in shares]
            plot.plot([100 * share for share in shares], means, **style, ms=4, label=f"width {width}")
    if seeds:
        draw_law(axes[0], cells, seeds)
        least = min(min(cell["losses"].values()) for cell in cells.values())
        axes[0].set_ylim(bottom=least / 2)  # the interval of the law may reach 0
    axes[0].set(title="All images: each seed, and the fit", xlabel="compute, GFLOP", ylabel="test loss")
    for plot in axes:
        plot.set(xscale="log", yscale="log")
        plot.minorticks_off()
    for plot, title in zip(axes[1:], ("Equal steps", "Equal compute"), strict=True):
        plot.set(title=title, xlabel="share of the training images, %")
        plot.set_xticks([100 * share for share in scale.SHARES], [f"{100 * share:g}" for share in scale.SHARES])
    axes[2].set(ylabel=axes[0].get_ylabel())
    for axis in (axes[0].xaxis, axes[0].yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
    drawn = [axes[1].get_legend_handles_labels(), axes[0].get_legend_handles_labels()]
    handles, names = ([each for part in parts for each in part] for parts in zip(*drawn, strict=True))
    empty.legend(handles, names, loc="center")
    figure.savefig(path)


def in_gflop(points: scale.Points) -> scale.Points:
    """Return points whose compute is in billions of operations."""
    return [(compute / 1e9, loss) for compute, loss in points]


def draw_law(plot: Axes, cells: dict[str, Any], seeds: list[int]) -> None:
    """Draw the mean law and its interval over seeds, dashed beyond the models that it is fitted to."""
    fitted = [scale.best_of_widths(cells, seed, scale.SHARES[-1], *scale.WIDTHS) for seed in seeds]
    last = max(scale.best_of_widths(cells, seed, scale.SHARES[-1], scale.LARGER)[0][0] for seed in seeds)
    ends = (min(points[0][0] for points in fitted), max(points[-1][0] for points in fitted))
    parts = ((np.geomspace(*ends, 40), "-", "power fitted to widths 8 to 24"),)
    parts += ((np.geomspace(ends[1], last, 20), "--", "its prediction of width 48"),)
    for computes, style, name in parts:
        found = [mean_interval([scale.predicted(points, compute) for points in fitted]) for compute in computes]
        means, lows, highs = zip(*found, strict=True)
        plot.plot(computes / 1e9, means, color=GREY, ls=style, lw=1.5, label=name)
        if len(seeds) > 1:
            plot.fill_between(computes / 1e9, np.maximum(lows, 1e-3), highs, color=GREY, alpha=0.2, lw=0)
    plot.fill_between([], [], [], color=GREY, alpha=0.2, lw=0, label="its 95 % interval over seeds")


@plot_style
def draw_norms(cells: dict[str, Any], path: Path) -> None:
    """Draw the norm of the gradient of each block before training, a plot for each depth; the mean over seeds."""
    figure = Figure(figsize=(7.4, 3.6))
    plots = figure.subplots(1, len(claims_norms.DEPTHS), sharey=True)
    for plot, depth in zip(plots, claims_norms.DEPTHS, strict=True):
        for number, (name, color) in enumerate(claims_norms.COLORS.items()):
            norms = of_setting(cells, f"{name}, depth {depth}", "gradient_norms")
            if norms:
                means = [statistics.geometric_mean(of_block) for of_block in zip(*norms, strict=True)]
                style = "--" if "no residual" in name else "-"
                plot.plot(range(depth), means, color=color, ls=style, marker=MARKERS[number], ms=4, label=name)
        plot.set(title=f"{depth} blocks", xlabel="block", yscale="log")
        plot.set_xticks(range(0, depth, max(1, depth // 4)))
        plot.minorticks_off()
    plots[0].set_ylabel("norm of the gradient")
    handles, names = plots[0].get_legend_handles_labels()
    figure.legend(handles, [f"norm: {name}" for name in names], loc="outside lower center", ncols=3)
    figure.savefig(path)


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
        asked = claims_quality.ASKED
        without = [100 * value for value in claims_quality.clean(cells, f"{name}, {asked:.0%} left out")]
        label = f"{name}, images with wrong labels left out"
        axes.scatter([100 * asked] * len(without), without, s=24, facecolors="none", edgecolors=color, label=label)
    axes.set(title="Test accuracy with wrong training labels")
    axes.set(xlabel="training labels that are wrong, %", ylabel="test accuracy, %")
    axes.legend()
    figure.savefig(path)


@plot_style
def draw_routed(cells: dict[str, Any], path: Path) -> None:
    """Draw accuracy over the number of heads, and which classes use which heads in a model of a seed."""
    figure = Figure(figsize=(7.4, 6.2))
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.1))
    accuracy = above.subplots()
    for number, (way, color) in enumerate(claims_routed.COLORS.items()):
        found = {k: claims_routed.accuracies(cells, way, k) for k in claims_routed.KEPT}
        intervals = {k: mean_interval([100 * value for value in values]) for k, values in found.items() if values}
        if not intervals:
            continue
        means, lows, highs = (np.array(each) for each in zip(*intervals.values(), strict=True))
        places = np.array([*intervals]) + 0.04 * (number - 1.5)  # side by side, so that no interval hides another
        tops = np.where(np.isfinite(highs), np.minimum(highs, 100), means)  # a single seed has no interval
        ends = np.nan_to_num([means - lows, tops - means], posinf=0)
        accuracy.errorbar(
            places, means, yerr=ends, color=color, marker=MARKERS[number], ms=5, capsize=3, lw=1.5, label=way
        )
    if whole := of_setting(cells, claims_routed.ALL, "accuracy"):
        level = 100 * sum(whole) / len(whole)
        accuracy.axhline(level, color="black", ls=":", lw=1, label=claims_routed.ALL)
    heads = claims_routed.HEADS
    accuracy.set(title="Accuracy, with its 95 % interval", xlabel=f"heads used in a block, of {heads}")
    accuracy.set(ylabel="test accuracy, %", xticks=claims_routed.KEPT, ylim=(None, 103))
    above.legend(loc="outside right center")
    plots = below.subplots(1, claims_routed.MODEL["depth"])
    use = of_setting(cells, f"by image, {claims_routed.FEW} of {heads}", "use")
    for block, plot in enumerate(plots):
        plot.set(title=f"Block {block}: heads used", xlabel="head", ylabel="digit")
        plot.set(xticks=range(heads), yticks=range(Digits.num_classes))
        plot.grid(False)
        if use:
            shown = plot.imshow(100 * torch.tensor(use[0][block]), cmap="Blues", vmin=0, vmax=100, aspect="auto")
    if use:
        below.colorbar(shown, ax=plots, label="images that use the head, %")
    figure.savefig(path)


@plot_style
def draw_cost(cells: dict[str, Any], path: Path) -> None:
    """Draw time and memory over the tokens, and time over the side of the window, whose memory does not grow."""
    figure, (time, memory, wide, empty) = four_places()
    kinds = (
        (time, "seconds", 1e3, "Time of one pass", "ms"),
        (memory, "bytes", 1e-6, "Peak memory of one pass", "MB"),
    )
    for plot, key, factor, title, unit in kinds:
        for number, (name, color) in enumerate(claims_cost.COLORS.items()):
            found = claims_cost.medians(cells, "tokens", name, key)
            values = [factor * value for value in found.values()]
            plot.plot(list(found), values, color=color, marker=MARKERS[number], ms=4, label=name)
        plot.set(title=title, xlabel="tokens", ylabel=unit, xscale="log", yscale="log")
        plot.set_xticks([4096, 16384, 65536], ["4,096", "16,384", "65,536"])
    found = claims_cost.medians(cells, "window", None, "seconds")
    wide.plot(list(found), [1e3 * value for value in found.values()], color=ORANGE, marker="o", ms=4)
    wide.set(title="Time of window attention", xlabel="side of the window, patches", ylabel="ms")
    wide.set(xscale="log", yscale="log")
    wide.set_xticks(list(found), [str(width) for width in found])
    for plot in (time, memory, wide):
        plot.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        plot.minorticks_off()
    empty.legend(*time.get_legend_handles_labels(), loc="center")
    figure.savefig(path)
