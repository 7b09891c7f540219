"""The pictures of an evaluated classifier: confusion, scores of the classes, calibration, mistakes, attention."""

from pathlib import Path
from typing import Any

import numpy as np
from lightning import LightningModule
from matplotlib.figure import Figure

from vit.data.module import ImageSet
from vit.objectives.classify.evaluation import Evaluation
from vit.support.captioned import draw_captioned, trim_name
from vit.support.plotting import BLUE, GREY, ORANGE, SKY, plain_text, plot_style, save_figure
from vit.training.examples import draw_rollout

MOST_NAMED_CLASSES = 20
MOST_CLASSES, CLASS_LETTERS = 100, 30  # of the chart of classes: its rows, and the length of a name
MISTAKE_LETTERS = 17  # of a name above a mistake
MISTAKES = {"across": 8, "width": 1.5, "fontsize": 8}


def draw_classification(classifier: LightningModule, folder: Path, split: str, image_set: ImageSet) -> None:
    """Draw the last evaluation of a ``ViTClassifier``, if there was one, and the attention, into a folder."""
    evaluation = classifier.evaluation
    if evaluation is not None:
        title = f"{split}: {100 * evaluation.accuracy:.2f} % of {evaluation.count:,} images correct"
        draw_confusion(evaluation, classifier.names, title, folder / "confusion_matrix.png")
        scores = classifier.scores()
        draw_classes(scores, f"Scores of the classes on the {split} images", folder / "per_class.png")
        draw_reliability(scores, f"Confidence on the {split} images", folder / "reliability.png")
        title = f"The most confident mistakes on the {split} images"
        draw_mistakes(evaluation, classifier.names, title, folder / "mistakes.png")
    draw_attention(classifier, folder, split, image_set)


def draw_attention(classifier: LightningModule, folder: Path, split: str, image_set: ImageSet) -> None:
    """Draw the attention rollout on a few images of a split, or print why there is none."""
    title, path = f"Attention rollout on {split} images", folder / "attention.png"
    try:
        draw_rollout(classifier, image_set, classifier.hparams.class_names, title, path)
    except Exception as error:  # of any kind: a picture must not end a training
        print(f"no attention.png: {' '.join(str(error).split())}", flush=True)


@plain_text
def draw_confusion(evaluation: Evaluation, class_names: list[str], title: str, path: Path) -> None:
    """Draw the confusion matrix, each row in per cent of its class."""
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
    save_figure(figure, path, dpi=120)


@plot_style
@plain_text
def draw_classes(scores: dict[str, Any], title: str, path: Path) -> None:
    """Draw precision, recall and F1 of each class as dots, the class of the lowest F1 on top.

    Of more than 100 classes, those of the lowest F1 are drawn; classes without images come last.
    """
    ranked = sorted(scores["classes"], key=lambda row: 2 if row["f1"] is None else row["f1"])
    rows = ranked[:MOST_CLASSES]
    if len(rows) < len(ranked):
        title += f": the {len(rows)} of the lowest F1 of {len(ranked):,}"
    figure = Figure(figsize=(8, 1.4 + 0.22 * len(rows)))
    axes = figure.subplots()
    # Of a class without images nothing is known; its precision is zero or none.
    values = {
        name: np.array([np.nan if row["f1"] is None or row[name] is None else 100 * row[name] for row in rows])
        for name in ("precision", "recall", "f1")
    }
    axes.hlines(range(len(rows)), values["precision"], values["recall"], color=GREY, lw=1, alpha=0.6)
    for name, color, marker in (("precision", SKY, "<"), ("recall", ORANGE, ">"), ("f1", BLUE, "o")):
        label = "F1" if name == "f1" else name
        axes.plot(values[name], range(len(rows)), marker, color=color, ms=5, label=label, clip_on=False)
    axes.set_yticks(range(len(rows)), [_row_label(row) for row in rows], fontsize=9)
    axes.set(title=title, xlabel="% (after each name: its number of images)", ylim=(len(rows) - 0.5, -0.5))
    axes.set_xlim(right=100.5)
    figure.legend(loc="outside upper right", ncols=3)
    save_figure(figure, path)


def _row_label(row: dict[str, Any]) -> str:
    return f"{trim_name(row['name'], CLASS_LETTERS)} ({row['support']:,})"


@plot_style
def draw_reliability(scores: dict[str, Any], title: str, path: Path) -> None:
    """Draw the accuracy of the images of about the same confidence over their confidence, and their number below."""
    bins = scores["reliability"]
    filled = [row for row in bins if row["count"]]
    confidence, accuracy = (100 * np.array([row[name] for row in filled]) for name in ("confidence", "accuracy"))
    figure = Figure(figsize=(6, 6.6))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    above.plot([0, 100], [0, 100], color=GREY, ls="--", label="as often right as confident")
    above.vlines(confidence, accuracy, confidence, color=ORANGE, lw=2, label="difference")
    above.plot(confidence, accuracy, "o", color=BLUE, label="accuracy", clip_on=False)
    above.legend(loc="upper left")
    error = scores["calibration_error"]
    ending = "" if error is None else f": calibration error (ECE) {100 * error:.2f} %"
    above.set(title=f"{title}{ending}", ylabel="accuracy, %", xlim=(0, 100), ylim=(0, 101))
    width = 100 / len(bins)
    below.bar(
        width * np.arange(len(bins)), [row["count"] for row in bins], width, align="edge", color=BLUE, edgecolor="white"
    )
    below.set(xlabel="confidence of the prediction, %", ylabel="images")
    save_figure(figure, path)


def draw_mistakes(evaluation: Evaluation, class_names: list[str], title: str, path: Path) -> None:
    """Draw the most confident mistakes: each image with its predicted class, the confidence, and its true class."""
    named = [
        (trim_name(class_names[predicted], MISTAKE_LETTERS), trim_name(class_names[label], MISTAKE_LETTERS))
        for _, _, label, predicted in evaluation.mistakes
    ]
    captions = [
        f"{said} ({100 * confidence:.0f} %)\ntrue: {true}"
        for (confidence, *_), (said, true) in zip(evaluation.mistakes, named, strict=True)
    ]
    images = [image for _, image, _, _ in evaluation.mistakes]
    draw_captioned(images, captions, [ORANGE] * len(images), title, path, **MISTAKES)
