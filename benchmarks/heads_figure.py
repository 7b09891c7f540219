"""The plot of heads.py: accuracy over the number of heads, of trained and of pruned models."""

from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from vit.support.plotting import BLUE, GREEN, GREY, ORANGE, plot_style

# Controls, nearly of one height: colour, and on which side of its line the name of each stands.
LEVELS = {"attention by positions alone": (GREEN, "bottom"), "uniform attention": (GREY, "top")}


@plot_style
def draw_heads(cells: dict[str, Any], path: Path) -> None:
    """Draw the models with the most steps; without a model of some heads there is no plot."""
    trained = [cell for cell in cells.values() if "budget" in cell]
    steps = max((cell["budget"] for cell in trained), default=0)
    trained = [cell for cell in trained if cell["budget"] == steps]
    counts = sorted({_heads(cell) for cell in trained} - {None})
    if not counts:
        return
    figure = Figure(figsize=(6.4, 4.2))
    axes = figure.subplots()
    accuracies = [_percent([cell["accuracy"] for cell in trained if _heads(cell) == count]) for count in counts]
    axes.plot(counts, accuracies, "o-", color=BLUE, label="trained with this number of heads")
    counted = [cell for cell in trained if _heads(cell)]
    places, heights = [_heads(cell) for cell in counted], [100 * cell["accuracy"] for cell in counted]
    axes.scatter(places, heights, color=BLUE, marker="_", s=80, label="its seeds")
    pruned = [cell for cell in trained if "pruned" in cell]
    if pruned:
        left = sorted(map(int, pruned[0]["pruned"]))
        values = [_percent([cell["pruned"][str(count)]["accuracy"] for cell in pruned]) for count in left]
        values.append(_percent([cell["accuracy"] for cell in pruned]))
        axes.plot([*left, 16], values, "o--", color=ORANGE, label="trained with 16 heads, pruned to this number")
    for name, (color, side) in LEVELS.items():
        if level := [cell["accuracy"] for cell in trained if cell["row"] == name]:
            axes.axhline(_percent(level), color=color, lw=1)
            place = {"xytext": (0, 3 if side == "bottom" else -3), "textcoords": "offset points", "va": side}
            axes.annotate(f"{name}: {_percent(level):.1f} %", (counts[0], _percent(level)), color=color, **place)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.minorticks_off()
    axes.set(
        title=f"Few heads from the start, or pruned to few ({steps:,} steps)",
        xlabel="heads in each layer",
        ylabel=f"accuracy on {trained[0]['examined']:,} test images, %",
    )
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path)


def _heads(cell: dict[str, Any]) -> int | None:
    """Return the number of heads of a model that differs in nothing else; None for the others."""
    count, _, rest = cell["row"].partition(" head")
    return int(count) if count.isdecimal() and rest in ("", "s") else None


def _percent(shares: list[float]) -> float:
    return 100 * mean(shares)
