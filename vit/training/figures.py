"""The pictures of a run: learning curves, confusion matrix, the most confident mistakes."""

from pathlib import Path
from typing import Any

import numpy as np
from einops import rearrange
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit.training.evaluation import Evaluation

# Okabe and Ito's palette: told apart by colour-blind readers, and in grey.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8a8a8a"
MOST_NAMED_CLASSES = 20
COLUMNS = 8


def draw_curves(history: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Loss, accuracy and learning rate over the epochs.

    Args:
        history: "train" points with epoch, loss and lr, "val" points with epoch, loss and accuracy.
        path: The PNG file.
    """
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    loss, accuracy, rate = figure.subplots(1, 3)
    train, val = history["train"], history["val"]
    loss.plot(_column(train, "epoch"), _column(train, "loss"), color=BLUE, label="training (augmented)")
    if val:
        loss.plot(_column(val, "epoch"), _column(val, "loss"), "o-", ms=3, color=ORANGE, label="validation")
        accuracy.plot(_column(val, "epoch"), 100 * _column(val, "accuracy"), "o-", ms=3, color=ORANGE)
    loss.legend(frameon=False)
    rate.plot(_column(train, "epoch"), _column(train, "lr"), color=GREY)
    # The last accuracy stands where no curve can cross it.
    last = f" (last: {100 * val[-1]['accuracy']:.2f})" if val else ""
    for axes, title in ((loss, "Loss"), (accuracy, f"Validation accuracy, %{last}"), (rate, "Learning rate")):
        axes.set(title=title, xlabel="epoch")
        axes.set_ylim(bottom=0 if axes is rate else None)
        _plain(axes)
    figure.savefig(path, dpi=120)


def draw_confusion(evaluation: Evaluation, class_names: list[str], title: str, path: Path) -> None:
    """Which class was taken for which, each row in per cent of its class."""
    counts = evaluation.confusion.cpu().numpy()
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    named = len(class_names) <= MOST_NAMED_CLASSES
    side = 2.5 + 0.55 * len(class_names) if named else 9
    figure = Figure(figsize=(side + 0.6, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    axes.set(title=title, xlabel="predicted class", ylabel="true class")
    if named:
        axes.set_xticks(range(len(class_names)), class_names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(class_names)), class_names)
        for (row, column), share in np.ndenumerate(shares):
            if share >= 0.5:
                color = "white" if share > 50 else "black"
                axes.text(column, row, f"{share:.0f}", ha="center", va="center", color=color, fontsize=9)
    figure.colorbar(image, shrink=0.75, label="% of the true class")
    figure.savefig(path, dpi=120)


def draw_mistakes(evaluation: Evaluation, class_names: list[str], title: str, path: Path) -> None:
    """The wrongly classified images of which the model was most sure, with what it took them for."""
    mistakes = evaluation.mistakes
    rows = max(1, -(-len(mistakes) // COLUMNS))
    figure = Figure(figsize=(1.5 * COLUMNS, 1.9 * rows + 0.5), layout="constrained")
    figure.suptitle(title if mistakes else f"{title}: none")
    grid: Any = figure.subplots(rows, COLUMNS, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for axes, (confidence, image, label, predicted) in zip(grid.flat, mistakes, strict=False):
        axes.imshow(rearrange(image.numpy(), "c h w -> h w c"), cmap="gray")
        axes.set_title(
            f"said {class_names[predicted]} ({100 * confidence:.0f} %)\nis {class_names[label]}",
            fontsize=8,
            color=ORANGE,
        )
    figure.savefig(path, dpi=120)


def _column(points: list[dict[str, float]], name: str) -> np.ndarray:
    return np.array([point[name] for point in points])


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
