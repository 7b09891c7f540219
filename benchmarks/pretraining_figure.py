"""The plot of pretraining.py: test accuracy of each way to learn from few labels, seed by seed."""

from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from vit.support.plotting import BLUE, GREEN, GREY, ORANGE, plot_style

# A way to learn: kind of score and its name in the plot.
WAYS = {"trained": "fine-tuned", "linear": "linear probe, frozen", "knn": "neighbours, frozen"}
ROWS = {"from scratch": ("from scratch", GREY), "mae": ("MaskedAutoencoder", BLUE)}
ROWS |= {"sigreg": ("SIGReg", GREEN), "dino": ("DINO", ORANGE), "untrained": ("untrained", GREY)}


@plot_style
def draw_pretraining(cells: dict[str, Any], labels: dict[float, str], path: Path) -> None:
    """Draw the accuracies of all rows that were measured, a panel for each share of the labels.

    Args:
        cells: The cells of pretraining.json.
        labels: The title of each share.
        path: The picture.
    """
    lines = [line for line in lines_of(cells) if line[2]]
    shares = [share for share in labels if any(share in found for *_, found in lines)]
    figure = Figure(figsize=(2.6 + 4.4 * len(shares), 0.9 + 0.32 * len(lines)))
    panels = figure.subplots(1, len(shares), sharey=True, squeeze=False)[0]
    for panel, share in zip(panels, shares, strict=True):
        for place, (_, color, found) in enumerate(lines):
            accuracies = found.get(share, [])
            panel.plot(accuracies, [place] * len(accuracies), "o", ms=4, alpha=0.6, color=color)
            if accuracies:
                panel.plot([mean(accuracies)], [place], "|", ms=16, color=color)
                panel.annotate(
                    f"{mean(accuracies):.1f}",
                    (max(accuracies), place),
                    xytext=(6, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                )
        panel.set_title(f"with {labels[share]}")
        panel.set_xlabel("test accuracy, %")
        panel.grid(axis="x", linewidth=0.4)
        panel.margins(x=0.12)
    panels[0].set_yticks(range(len(lines)), [name for name, *_ in lines])
    panels[0].invert_yaxis()
    figure.suptitle("Test accuracy of each training (dots) and their mean (line)")
    figure.savefig(path)


def score(cell: dict[str, Any], kind: str) -> float | None:
    """Return the accuracy of a training, or of a classifier on frozen features; None of neither."""
    return cell.get("training", {}).get("test_accuracy") if kind == "trained" else cell.get("frozen", {}).get(kind)


def lines_of(cells: dict[str, Any]) -> list[tuple[str, str, dict[float, list[float]]]]:
    """Return the name and the colour of each line of the plot, and its accuracies of each share, in per cent."""
    lines = []
    for row, (name, color) in ROWS.items():
        for kind, way in WAYS.items():
            found: dict[float, list[float]] = {}
            for cell in (cell for cell in cells.values() if cell["row"] == row):
                if (value := score(cell, kind)) is not None:
                    found.setdefault(cell["share"], []).append(100 * value)
            lines.append((name if row == "from scratch" else f"{name}: {way}", color, found))
    return lines
