"""The plot of heads.py: accuracy over the number of heads, of trained and of pruned models."""

from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from vit.support.plotting import BLUE, GREEN, GREY, ORANGE, plot_style

# Controls, which ignore the image: colour and dashes of their lines.
LEVELS = {"attention by positions alone": (GREEN, "-."), "uniform attention": (GREY, "--")}


@plot_style
def draw_heads(cells: dict[str, Any], path: Path) -> None:
    """Draw the models with the most steps; without a model of some heads there is no plot."""
    trained = [cell for cell in cells.values() if "budget" in cell]
    steps = max((cell["budget"] for cell in trained), default=0)
    trained = [cell for cell in trained if cell["budget"] == steps]
    counts = sorted({_heads(cell) for cell in trained} - {None})
    if not counts:
        return
    figure = Figure(figsize=(9.6, 4.4))
    axes, near = figure.subplots(1, 2)
    for each, score in ((axes, "accuracy"), (near, "test_accuracy")):
        accuracies = [_percent([cell[score] for cell in trained if _heads(cell) == count]) for count in counts]
        each.plot(counts, accuracies, "o-", color=BLUE, label="trained with this number of heads")
    counted = [cell for cell in trained if _heads(cell)]
    places, heights = [_heads(cell) for cell in counted], [100 * cell["test_accuracy"] for cell in counted]
    near.scatter(places, heights, color=BLUE, marker="_", s=80, label="its seeds")
    pruned = [cell for cell in trained if "pruned" in cell]
    if pruned:
        left = sorted(map(int, pruned[0]["pruned"]))
        values = [_percent([cell["pruned"][str(count)]["accuracy"] for cell in pruned]) for count in left]
        values.append(_percent([cell["accuracy"] for cell in pruned]))
        axes.plot([*left, 16], values, "o--", color=ORANGE, label="trained with 16 heads, pruned to this number")
    for name, (color, dashes) in LEVELS.items():
        if level := [cell["test_accuracy"] for cell in trained if cell["row"] == name]:
            near.axhline(_percent(level), color=color, ls=dashes, label=name)
    for each in (axes, near):
        each.set_xscale("log", base=2)
        each.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
        each.minorticks_off()
        each.set_xlabel("heads in each layer")
    axes.set_title("Few from the start, or pruned to few")
    axes.set_ylabel(f"accuracy on {trained[0]['examined']:,} test images, %")
    near.set_title("Enlarged, with controls")
    near.set_ylabel("accuracy on all test images, %")
    axes.set_ylim(bottom=0)
    for each in (axes, near):
        each.legend(loc="lower right")
    figure.suptitle(f"Heads in each layer, {steps:,} steps")
    figure.savefig(path)


def _heads(cell: dict[str, Any]) -> int | None:
    """Return the number of heads of a model that differs in nothing else; None for the others."""
    count, _, rest = cell["row"].partition(" head")
    return int(count) if count.isdecimal() and rest in ("", "s") else None


def _percent(shares: list[float]) -> float:
    return 100 * mean(shares)
