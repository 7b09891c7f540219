"""The plot of scale.py: time and memory of an image over tokens and over images of a batch."""

import json
import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from vit.support.plotting import BLUE, BROWN, GREEN, ORANGE, PINK, plot_style

# timm's line often lies under that of another library: its dashes leave both to be seen.
DASHED = "timm"
COLORS = {"ours": BLUE, "timm": ORANGE, "torchvision": GREEN, "vit-pytorch": PINK, "transformers": BROWN}
AXES = {"tokens": "tokens of one image", "batch": "images of 65 tokens in a batch"}
TITLES = {"tokens": "one image, more tokens", "batch": "more images of 65 tokens"}
MEASURES = {"seconds": (1e3, "inference, ms an image"), "bytes": (2**-20, "memory, MiB an image")}
LABEL_GAP = 0.075  # of the axes' height


@plot_style
def draw_scale(path: Path) -> list[Path]:
    """Draw a picture for each type of numbers that was measured in inference, beside the JSON file."""
    pictures = []
    cells = json.loads(path.read_text())
    for dtype, name in {"fp32": "float32", "bf16": "bfloat16"}.items():
        chosen = [cell for cell in cells.values() if (cell["mode"], cell["dtype"]) == ("inference", dtype)]
        parts = [part for part in AXES if any(cell["part"] == part for cell in chosen)]
        if not parts:
            continue
        figure = Figure(figsize=(4.4 * len(parts) + 0.4, 6.8))
        panels = figure.subplots(len(MEASURES), len(parts), squeeze=False)
        for row, measure in zip(panels, MEASURES, strict=True):
            for axes, part in zip(row, parts, strict=True):
                _draw_panel(axes, [cell for cell in chosen if cell["part"] == part], part, measure)
        figure.suptitle(f"Time and memory in {name}: the same model in five libraries")
        pictures.append(path.with_name(f"{path.stem}_{dtype}.png"))
        figure.savefig(pictures[-1])
    return pictures


def _draw_panel(axes: Axes, cells: list[dict[str, Any]], part: str, measure: str) -> None:
    factor, title = MEASURES[measure]
    ends = {}
    for name, color in COLORS.items():
        points = sorted(
            (cell["value"], factor * cell["rows"][name][measure])
            for cell in cells
            if measure in cell["rows"].get(name, {})
        )
        if points:
            look = {"ls": (0, (3, 2)), "zorder": 3} if name == DASHED else {"ls": "-"}
            axes.plot(
                *zip(*points, strict=True), marker="o", color=color, ms=4, lw=2 if name == "ours" else 1.3, **look
            )
            ends[name] = points[-1]
    values = sorted({cell["value"] for cell in cells})
    axes.set(xscale="log", xlabel=AXES[part], ylabel=title, title=TITLES[part])
    axes.set_xlim(values[0] / 1.4, values[-1] * (values[-1] / values[0]) ** 0.42)
    axes.set_xticks(values, [f"{value:,}" for value in values])
    if part == "tokens":
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        # A decade has ticks at 1, 2 and 5 where the axis has few decades.
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
        axes.set_ylim(low, high)
    else:  # an image costs about as much in every batch: an axis from 0 shows by how little it differs
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.minorticks_off()
    _label_ends(axes, ends)


def _label_ends(axes: Axes, ends: dict[str, tuple[float, float]]) -> None:
    """Write the name of each line at its right end, one above the other."""
    to_height = axes.transData + axes.transAxes.inverted()
    height = -math.inf
    heights = {}
    for name, end in sorted(ends.items(), key=lambda item: item[1][1]):
        height = max(to_height.transform(end)[1], height + LABEL_GAP)
        heights[name] = height
    too_high = max(0.0, height - 0.98)
    for name, (at, value) in ends.items():
        axes.annotate(
            name,
            (at, value),
            (at * 1.5, heights[name] - too_high),
            textcoords=("data", "axes fraction"),
            color=COLORS[name],
            va="center",
            fontsize=9,
            weight="bold" if name == "ours" else "normal",
            arrowprops={"arrowstyle": "-", "relpos": (0, 0.5), "color": COLORS[name], "lw": 0.6},
        )
