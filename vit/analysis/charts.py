"""Figures of heads and layers."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from vit.analysis.head_removal import PruningPoint
from vit.analysis.head_table import HeadTable
from vit.analysis.probes import Probes
from vit.analysis.projections import LayerRanks
from vit.analysis.truncation import RankPoint
from vit.support.picture_files import save_figure
from vit.support.plotting import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    MINT,
    ORANGE,
    ROSE,
    SERIES,
    SILVER,
    SKY,
    dark_half,
    letters_on,
    plot_style,
)

KIND_COLORS = {"local": SKY, "positional": AMBER, "content": MINT, "sink": SILVER, "mixed": ROSE}
ORDER_COLORS = {"importance": BLUE, "oracle": ORANGE, "weight": GREEN, "random": GREY}
MOST_NAMED = len(SERIES)  # lines with a name each; more have a colour bar
MARKERS = "os^vPX"  # of the same lines
ORDER_NAMES = {
    "importance": "by gradient of the gate",
    "oracle": "by loss without the head",
    "weight": "by size of weights",
    "random": "at random (mean of draws)",
}
RANKS = {"shared_query_key": "Queries and keys", "shared_value_output": "Values and outputs"}
TRAINED = {"color": BLUE, "marker": "o", "ms": 4, "label": "trained"}
UNTRAINED = {"color": GREY, "marker": "o", "ms": 4, "ls": "--", "label": "before training"}
MOST_NUMBERED = 16  # heads of a layer; if a layer has more, numbers do not fit into the cells


@plot_style
def draw_distances(table: HeadTable, path: Path, before: HeadTable | None = None) -> None:
    """Draw the mean attention distance of each head by layer, and the distance of uniform attention as a line.

    ``before`` is the table of the model before training, whose heads are grey.

    Figure 7 of Dosovitskiy et al. (2021) is the same chart. There, only the first layers have local heads.
    """
    figure = Figure(figsize=(6.4, 4))
    axes = figure.subplots()
    axes.axhline(table.uniform_distance, color=GREY, ls="--", label="uniform attention")
    drawn = [] if before is None else [(before, {"color": GREY, "label": "one head before training"}, 0.15)]
    for each, look, shift in [*drawn, (table, {"color": BLUE, "label": "one head"}, 0.0)]:
        layers = [head.layer + shift for head in each.heads]
        axes.plot(layers, [head.distance for head in each.heads], "o", ms=5, alpha=0.7, **look)
    distances = [head.distance for each, *_ in [*drawn, (table,)] for head in each.heads]
    axes.set(title="How far patches look", xlabel="layer", ylabel="mean attention distance, pixels")
    axes.set_ylim(0, 1.25 * max(table.uniform_distance, *distances))
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper center", ncols=2)
    _use_integer_ticks(axes.xaxis)
    save_figure(figure, path)


def draw_kinds(table: HeadTable, path: Path) -> None:
    """Draw each head as a cell: the colour is its kind, the number its entropy."""
    values = _cells([[list(KIND_COLORS).index(head.kind) for head in layer] for layer in _by_layer(table)])
    figure, axes = _head_map(values, "What the heads do, and their entropy (0 to 1)")
    axes.imshow(values, cmap=ListedColormap(list(KIND_COLORS.values())), vmin=0, vmax=len(KIND_COLORS) - 1)
    if values.shape[1] <= MOST_NUMBERED:
        for head in table.heads:
            axes.text(head.head, head.layer, f"{head.entropy:.2f}", ha="center", va="center", fontsize=8)
    patches = [Patch(color=color, label=kind) for kind, color in KIND_COLORS.items()]
    figure.legend(handles=patches, loc="outside right center", frameon=False)
    save_figure(figure, path, dpi=120)


def draw_importance(importance: Sequence[Tensor], quantity: str, path: Path) -> None:
    """Draw the importance of each head: (H,) for each layer, from any function of ``vit.analysis.importance``.

    The quantity is the label of the colour bar and includes the unit: "rise of the loss without the head, nats".
    """
    values = _cells([layer.tolist() for layer in importance])
    figure, axes = _head_map(values, "Importance of the heads")
    lowest, highest = np.nanmin(values), max(np.nanmax(np.abs(values)), 1e-12)
    # The model may be better without some heads: their values are negative. Zero is white either way.
    signed = {"cmap": "RdBu_r", "vmin": -highest, "vmax": highest}
    image = axes.imshow(values, **(signed if lowest < 0 else {"cmap": "Blues", "vmin": 0, "vmax": highest}))
    digits = max(0, 1 - math.floor(math.log10(highest)))  # two of the largest value
    if values.shape[1] <= MOST_NUMBERED:
        for (layer, head), value in np.ndenumerate(values):
            if np.isfinite(value):
                color = letters_on(image.to_rgba(value)[:3])
                axes.text(head, layer, f"{value:z.{digits}f}", ha="center", va="center", color=color, fontsize=8)
    figure.colorbar(image, label=quantity, shrink=0.8)
    save_figure(figure, path, dpi=120)


@plot_style
def draw_pruning(curves: Mapping[str, Sequence[PruningPoint]], path: Path) -> None:
    """Draw the accuracy as heads are removed. Each order of removal has its points from ``pruning_curve``."""
    figure = Figure(figsize=(6.4, 4))
    axes = figure.subplots()
    markers = dict(zip(ORDER_COLORS, MARKERS, strict=False))
    for order, points in curves.items():
        look = {"color": ORDER_COLORS[order], "marker": markers[order], "ms": 5, "label": ORDER_NAMES.get(order, order)}
        axes.plot([point.heads_left for point in points], [100 * point.accuracy for point in points], **look)
    axes.legend()
    axes.set(title="Accuracy as heads are removed, the least important first")
    axes.set(xlabel="heads left", ylabel="accuracy, %")
    axes.set_ylim(bottom=0)
    axes.invert_xaxis()
    _use_integer_ticks(axes.xaxis)
    save_figure(figure, path)


@plot_style
def draw_layers(curves: Mapping[int, Sequence[PruningPoint]], anywhere: float, path: Path) -> None:
    """Draw one curve per layer, from ``pruning_curve``: accuracy as heads of this layer alone are removed.

    The control, at 0 heads left, is the accuracy without as many random heads of all layers.
    """
    figure = Figure(figsize=(6.4, 4))
    axes = figure.subplots()
    colors, are_named = dark_half(len(curves)), len(curves) <= MOST_NAMED
    for number, (layer, points) in enumerate(curves.items()):
        count = len(points[-1].removed[layer])
        left = [count - len(point.removed.get(layer, [])) for point in points]
        accuracies = [100 * point.accuracy for point in points]
        look = {"color": colors.to_rgba(layer), "marker": "o"}
        if are_named:
            look = {"color": SERIES[number], "marker": MARKERS[number], "label": f"layer {layer}"}
        axes.plot(left, accuracies, ms=5, **look)
    control = "as many random heads of all layers removed"
    # Hollow, as a line may end at the same place.
    axes.plot([0], [100 * anywhere], color=GREY, marker="D", ms=9, mfc="none", mew=2, ls="none", label=control)
    axes.legend(loc="lower left")
    if not are_named:
        _use_integer_ticks(figure.colorbar(colors, ax=axes, label="layer").ax.yaxis)
    axes.set(title="Heads of one layer removed", xlabel="heads left in this layer", ylabel="accuracy, %")
    axes.set_ylim(bottom=0)
    axes.invert_xaxis()
    _use_integer_ticks(axes.xaxis)
    save_figure(figure, path)


@plot_style
def draw_truncation(points: Sequence[RankPoint], uniform: float, path: Path) -> None:
    """Draw accuracy over the rank that attention is cut to, with random subspaces and uniform attention as controls."""
    figure = Figure(figsize=(6.4, 4))
    axes = figure.subplots()
    ranks = [point.rank for point in points]
    axes.plot(ranks, [100 * point.accuracy for point in points], "o-", ms=4, color=BLUE, label="best subspace")
    controls = [100 * point.random_accuracy for point in points]
    axes.plot(ranks, controls, "o-", ms=4, color=GREY, label="random subspace")
    axes.axhline(100 * uniform, color=ORANGE, ls="--", label="uniform attention")
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(rank) for rank in ranks])
    axes.minorticks_off()
    axes.set(title="Attention cut to a rank", xlabel="rank of every attention", ylabel="accuracy, %")
    axes.set_ylim(bottom=0)
    axes.legend()
    save_figure(figure, path)


@plot_style
def draw_ranks(trained: Sequence[LayerRanks], untrained: Sequence[LayerRanks], path: Path) -> None:
    """Draw the effective ranks of the projections of each layer before and after training, over all heads together."""
    figure = Figure(figsize=(10.5, 4))
    for axes, (name, title) in zip(figure.subplots(1, 2, sharey=True), RANKS.items(), strict=True):
        for ranks, style in ((trained, TRAINED), (untrained, UNTRAINED)):
            axes.plot([layer.effective_ranks()[name].item() for layer in ranks], **style)
        width = getattr(trained[0], name).numel()
        axes.axhline(width, color="black", lw=0.8, ls=":", label=f"width of a token, {width}")
        axes.set(title=title, xlabel="layer", ylabel="effective rank", ylim=(0, 1.08 * width))
        _use_integer_ticks(axes.xaxis)
    axes.legend(loc="lower right")
    save_figure(figure, path)


@plot_style
def draw_probes(trained: Probes, untrained: Probes, path: Path) -> None:
    """Draw what probes read from the tokens before and after each layer and from single heads.

    An untrained model is the control. The point of a head lies between the tokens before and after its layer.
    """
    figure = Figure(figsize=(10.5, 3.6))
    titles = {"class_accuracy": "Class, accuracy", "colour": "Colour of the patch, R²", "position": "Its place, R²"}
    for axes, (name, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        for probes, style in ((trained, TRAINED), (untrained, UNTRAINED)):
            axes.plot([getattr(probe, name) for probe in probes.layers], **style)
        places = [layer + 0.5 for layer, of_layer in enumerate(trained.heads) for _ in of_layer]
        values = [getattr(probe, name) for of_layer in trained.heads for probe in of_layer]
        axes.plot(places, values, "o", ms=4, color=ORANGE, alpha=0.6, label="one trained head")
        axes.set(title=title, xlabel="layers passed", ylim=(min(0, axes.dataLim.ymin) - 0.03, 1.03))
        _use_integer_ticks(axes.xaxis)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save_figure(figure, path)


@plot_style
def draw_rare(own: Sequence[Tensor], others: Sequence[Tensor], path: Path) -> None:
    """Draw the correlation of each head's attention with the rarity of patches: own image, and another as control."""
    figure = Figure(figsize=(6.4, 4))
    axes = figure.subplots()
    axes.axhline(0, color="black", lw=0.8)
    for values, shift, color, label in ((own, -0.12, BLUE, "own image"), (others, 0.12, GREY, "another image")):
        places = [layer + shift for layer, heads in enumerate(values) for _ in heads]
        axes.plot(places, torch.cat(list(values)).tolist(), "o", ms=5, color=color, alpha=0.7, label=label)
    axes.set(title="Attention to rare patches", xlabel="layer", ylabel="rank correlation with rarity", ylim=(-1, 1))
    axes.legend(loc="upper center", ncols=2)
    _use_integer_ticks(axes.xaxis)
    save_figure(figure, path)


@plot_style
def draw_positions(accuracies: Mapping[str, float], chance: float, path: Path) -> None:
    """Draw the accuracies from ``position_accuracies``, and the share of the most frequent class as a line."""
    figure = Figure(figsize=(6.4, 3))
    axes = figure.subplots()
    names = {
        "own": "own positions",
        "larger": "1.5 times the size",
        "shuffled": "shuffled positions",
        "mean": "one position for all",
    }
    bars = axes.barh(list(names.values()), [100 * accuracies[name] for name in names], color=[BLUE, SKY, GREY, GREY])
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.axvline(100 * chance, color=ORANGE, ls="--", label="most frequent class")
    axes.invert_yaxis()
    axes.set(xlabel="accuracy, %", xlim=(0, 100))
    axes.legend(loc="lower right")
    axes.grid(axis="y", visible=False)
    save_figure(figure, path)


def draw_offsets(table: HeadTable, path: Path) -> None:
    """Draw a map of offsets for each head: mean attention over patches and images. The query is in the middle.

    A head that attends to the left neighbour has a red spot left of the middle. A head of rows has a red bar.
    """
    numbers = [layer for layer, heads in enumerate(_by_layer(table)) if heads]
    across = max(map(len, table.offset_maps))
    figure = Figure(figsize=(1.3 * across + 1.6, 1.3 * len(numbers) + 1.2), layout="constrained")
    figure.suptitle("Mean attention to the patch\nat each offset, 1 if uniform", fontsize=11)
    figure.supxlabel(f"offset to the right, {1 - table.grid[1]} to {table.grid[1] - 1} patches", fontsize=9)
    figure.supylabel(f"offset down, {1 - table.grid[0]} to {table.grid[0] - 1} patches", fontsize=9)
    panels = figure.subplots(len(numbers), across, squeeze=False, sharex=True, sharey=True)
    down, right = table.grid[0] - 0.5, table.grid[1] - 0.5
    for head, axes in enumerate(panels[0]):
        axes.set_title(f"head {head}", fontsize=9)
    for layer, maps, row in zip(numbers, table.offset_maps, panels, strict=True):
        for head, axes in enumerate(row):
            if head >= len(maps):
                axes.axis("off")
                continue
            logs = maps[head].clamp(min=1e-6).log2().numpy()
            image = axes.imshow(logs, cmap="RdBu_r", vmin=-4, vmax=4, extent=(-right, right, down, -down))
            axes.set(xticks=[], yticks=[])
        row[0].set_ylabel(f"layer {layer}", fontsize=9)
    bar = figure.colorbar(image, ax=panels, shrink=min(1.0, 3 / len(numbers)), extend="both", ticks=[-4, -2, 0, 2, 4])
    bar.ax.set_yticklabels(["1/16", "1/4", "1", "4", "16"])
    save_figure(figure, path, dpi=120)


def _by_layer(table: HeadTable) -> list[list]:
    depth = 1 + max(head.layer for head in table.heads)
    return [[head for head in table.heads if head.layer == layer] for layer in range(depth)]


def _cells(rows: Sequence[Sequence[float]]) -> np.ndarray:
    """Stack rows as (layers, heads). NaN fills the ends of shorter rows."""
    cells = np.full((len(rows), max(map(len, rows))), np.nan)
    for cell_row, row in zip(cells, rows, strict=True):
        cell_row[: len(row)] = row
    return cells


def _head_map(values: np.ndarray, title: str) -> tuple[Figure, Axes]:
    layers, heads = values.shape
    figure = Figure(figsize=(3.2 + 0.5 * heads, 1.4 + 0.42 * layers), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(title, fontsize=11)
    axes.set(xlabel="head", ylabel="layer", aspect="auto")
    _use_integer_ticks(axes.xaxis, axes.yaxis)
    return figure, axes


def _use_integer_ticks(*sides: Axis) -> None:
    for side in sides:
        side.set_major_locator(MaxNLocator(integer=True))
