"""The pictures of an evaluated classifier: confusion, scores of the classes, calibration, mistakes, attention."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lightning import LightningModule
from matplotlib.figure import Figure

from vit.data.image_set import ImageSet
from vit.objectives.classify.evaluation import POSITIVE, Evaluation
from vit.objectives.classify.roc_picture import draw_curves
from vit.objectives.classify.tables import MOST_IN_MATRIX, end_of
from vit.support.captioned import draw_captioned, trim_names
from vit.support.fonts import drawable
from vit.support.picture_files import save_figure
from vit.support.plotting import BLUE, GREEN, GREY, ORANGE, letters_on, plain_text, plot_style
from vit.training.example_images import draw_map

MOST_WRITTEN_CLASSES = 20  # of a confusion matrix with numbers
MOST_CLASSES, CLASS_LETTERS = 100, 30  # of the chart of classes: its rows, and the length of a name
MISTAKE_LETTERS, FILE_LETTERS = 17, 22  # of a class and of a file above a mistake
MISTAKES = {"across": 5, "width": 1.5, "fontsize": 8}


def draw_classification(classifier: LightningModule, folder: Path, split: str, image_set: ImageSet) -> None:
    """Draw the last evaluation of a ``ViTClassifier``, if there was one, and the attention, into a folder.

    With more than 100 classes there is neither a confusion matrix nor a picture of curves.
    """
    evaluation = classifier.evaluation
    if evaluation is not None:
        title = f"{split}: {100 * evaluation.accuracy:.2f} % of {evaluation.count:,} images correct"
        is_readable = len(classifier.names) <= MOST_IN_MATRIX
        if is_readable:
            draw_confusion(evaluation, classifier.names, title, folder / "confusion_matrix.png")
        scores = classifier.scores()
        draw_classes(scores, f"Scores of the classes on the {split} images", folder / "per_class.png")
        draw_reliability(scores, f"Confidence on the {split} images", folder / "reliability.png")
        if is_readable:
            targets = F.one_hot(evaluation.rows["label"], len(classifier.names)).bool()
            threshold = (scores.get("threshold") or {}).get("value")
            shown = [POSITIVE] if len(classifier.names) == 2 else range(len(classifier.names))
            of_images = evaluation.rows["probabilities"], targets, scores, shown, f"{split} images"
            draw_curves(*of_images, folder / "roc.png", threshold)
        title = f"The most confident mistakes on the {split} images"
        draw_mistakes(evaluation, classifier.names, image_set, title, folder / "mistakes.png")
    draw_attention(classifier, folder, split, image_set)


def draw_attention(classifier: LightningModule, folder: Path, split: str, image_set: ImageSet) -> None:
    """Draw which patches speak for the classes of a few images of a split, or print why there is no such picture."""
    title, path = f"What speaks for the most probable class, {split} images", folder / "attention.png"
    try:
        draw_map(classifier, image_set, classifier.hparams.class_names, title, path)
    except Exception as error:  # of any kind: a picture must not end a training
        print(f"no attention.png: {' '.join(str(error).split())}", flush=True)


@plain_text
def draw_confusion(evaluation: Evaluation, class_names: list[str], title: str, path: Path) -> None:
    """Draw the confusion matrix, each row in per cent of its class; with few classes, also the numbers of images."""
    counts = evaluation.confusion.cpu().numpy()
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    written = len(class_names) <= MOST_WRITTEN_CLASSES
    side = (0.62 if written else 0.14) * len(class_names)
    with drawable(class_names) as names:
        figure = Figure(figsize=(max(side, 2.2) + 3.2, max(side, 2.2) + 2.4), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
        axes.set(xlabel="predicted class", ylabel="true class")
        figure.suptitle(title)
        shown, size = trim_names(names, CLASS_LETTERS), None if written else 6
        places = range(len(shown))
        axes.set_xticks(
            places, shown, rotation=45 if written else 90, ha="right", rotation_mode="anchor", fontsize=size
        )
        axes.set_yticks(places, shown, fontsize=size)
        for (row, column), count in np.ndenumerate(counts) if written else ():
            if count:
                share = shares[row, column]
                color = letters_on(image.to_rgba(share)[:3])
                said = f"{share:.0f} %" if share >= 1 else "< 1 %"
                axes.text(column, row - 0.13, said, ha="center", va="center", color=color, fontsize=9)
                axes.text(column, row + 0.22, f"{count:,}", ha="center", va="center", color=color, fontsize=7)
        figure.colorbar(image, shrink=0.75, label="% of the true class" + (", and images" if written else ""))
        save_figure(figure, path, dpi=120)


@plot_style
@plain_text
def draw_classes(scores: dict[str, Any], title: str, path: Path) -> None:
    """Draw precision, recall and F1 of each class as dots, the class of the lowest F1 on top.

    With more than 100 classes, those of the lowest F1 are drawn; classes without images come last.
    """
    ranked = sorted(scores["classes"], key=lambda row: 2 if row["f1"] is None else row["f1"])
    rows = ranked[:MOST_CLASSES]
    if len(rows) < (count := scores.get("class_count", len(ranked))):
        title += f": the {len(rows)} of the lowest F1 of {count:,}"
    figure = Figure(figsize=(8, 1.4 + 0.22 * len(rows)))
    axes = figure.subplots()
    # A class without images gets no dots, even if its precision is 0 and not None.
    values = {
        name: np.array([np.nan if row["f1"] is None or row[name] is None else 100 * row[name] for row in rows])
        for name in ("precision", "recall", "f1")
    }
    axes.hlines(range(len(rows)), values["precision"], values["recall"], color=GREY, lw=1, alpha=0.6)
    for name, color, marker in (("precision", GREEN, "<"), ("recall", ORANGE, ">"), ("f1", BLUE, "o")):
        label = "F1" if name == "f1" else name
        axes.plot(values[name], range(len(rows)), marker, color=color, ms=5, label=label, clip_on=False)
    axes.set(title=title, xlabel="% (after each name: its number of images)", ylim=(len(rows) - 0.5, -0.5))
    axes.set_xlim(right=100.5)
    figure.legend(loc="outside upper right", ncols=3)
    with drawable([row["name"] for row in rows]) as names:
        short = zip(trim_names(names, CLASS_LETTERS), rows, strict=True)
        labels = [f"{name} ({row['support']:,})" for name, row in short]
        axes.set_yticks(range(len(rows)), labels, fontsize=9)
        save_figure(figure, path)


@plot_style
def draw_reliability(scores: dict[str, Any], title: str, path: Path) -> None:
    """Draw accuracy over confidence, for bins of images of about the same confidence, and their number below."""
    bins = scores["reliability"]
    filled = [row for row in bins if row["count"]]
    confidence, accuracy = (100 * np.array([row[name] for row in filled]) for name in ("confidence", "accuracy"))
    figure = Figure(figsize=(6, 6.6))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    above.plot([0, 100], [0, 100], color=GREY, ls="--", label="as often right as confident")
    above.vlines(confidence, accuracy, confidence, color=ORANGE, lw=2, label="difference")
    above.plot(confidence, accuracy, "o", color=BLUE, label="accuracy", clip_on=False)
    figure.legend(loc="outside lower center", ncols=3)
    error = scores["calibration_error"]
    ending = "" if error is None else f": calibration error (ECE) {100 * error:.2f} %"
    above.set(title=f"{title}{ending}", ylabel="accuracy, %", xlim=(0, 100), ylim=(0, 101))
    width = 100 / len(bins)
    below.bar(
        width * np.arange(len(bins)), [row["count"] for row in bins], width, align="edge", color=BLUE, edgecolor="white"
    )
    below.set(xlabel="confidence of the prediction, %", ylabel="images")
    save_figure(figure, path)


def draw_mistakes(evaluation: Evaluation, class_names: list[str], image_set: ImageSet, title: str, path: Path) -> None:
    """Draw the most confident mistakes: each with its file, its predicted class, the confidence and its true class."""
    mistakes = evaluation.mistakes
    with drawable([*class_names, *(image_set.name(mistake.index) for mistake in mistakes)]) as names:
        classes, files = trim_names(names[: len(class_names)], MISTAKE_LETTERS), names[len(class_names) :]
        captions = [
            f"{caption_of_file(file)}\n{classes[mistake.predicted]} ({100 * mistake.confidence:.0f} %)\n"
            f"true: {classes[mistake.label]}"
            for mistake, file in zip(mistakes, files, strict=True)
        ]
        draw_mistaken(image_set, [mistake.index for mistake in mistakes], captions, title, path)


def draw_mistaken(image_set: ImageSet, indices: list[int], captions: list[str], title: str, path: Path) -> None:
    """Draw images of a split, each below a caption that says what is wrong."""
    images = list(image_set.decode(torch.tensor(indices))[0]) if indices else []
    draw_captioned(images, captions, [ORANGE] * len(images), title, path, **MISTAKES)


def caption_of_file(file: str) -> str:
    """Return the end of a file's name, or "image 7" for the number of an image that has no file."""
    return f"image {file}" if file.isdecimal() else end_of(file, FILE_LETTERS)
