"""The pictures of a run: curves, confusion matrix, scores of the classes, calibration, mistakes, attention.

Letters in the einops patterns: c image channels, h w rows and columns of pixels.
"""

from pathlib import Path
from typing import Any

import numpy as np
from einops import rearrange
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only
from matplotlib.figure import Figure

from vit.class_names import name_classes
from vit.data.module import Stage
from vit.plotting import BLUE, GREY, ORANGE, SKY, plain_text, plot_style
from vit.training.evaluation import Evaluation
from vit.training.examples import draw_rollout
from vit.training.record import RunRecord

MOST_NAMED_CLASSES = 20
MOST_CLASSES, CLASS_LETTERS = 100, 30  # of the chart of classes: its rows, and the length of a name
COLUMNS, MISTAKE_LETTERS = 8, 17  # of the mistakes
CELL, CAPTION, HEAD = 1.5, 0.4, 0.4  # inches: width of a mistake, height of its caption, height of the title


class RunPictures(Callback):
    """Draw the curves of a training, and the other pictures of the last validation or test."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the curves."""
        self._draw_curves(trainer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Draw the last validation of a training, unless a test follows; EMA put the average in place in on_fit_end."""
        sets = trainer.datamodule.sets
        if stage == "fit" and "val" in sets and not ("test" in sets and trainer.limit_test_batches):
            self._draw_images(trainer, pl_module, "val")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw a validation, unless it is one of those during training."""
        if trainer.state.fn != TrainerFn.FITTING:
            self._draw_images(trainer, pl_module, "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the test."""
        self._draw_images(trainer, pl_module, "test")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Draw the curves so far."""
        if trainer.state.fn == TrainerFn.FITTING:
            try:
                self._draw_curves(trainer)
            except OSError as error:  # such as the full disk that stopped the run
                print(f"could not draw the curves so far: {error}", flush=True)

    @rank_zero_only
    def _draw_curves(self, trainer: Trainer) -> None:
        history = self.record.measurements.history
        if history["train"] and not trainer.fast_dev_run:
            draw_curves(history, self._file("curves.png"))

    @rank_zero_only
    def _draw_images(self, trainer: Trainer, pl_module: LightningModule, stage: Stage) -> None:
        """Draw the pictures of the last evaluation, if there was one, and the attention."""
        if trainer.fast_dev_run:
            return
        evaluation, class_names = pl_module.evaluation, pl_module.hparams.class_names
        split = "validation" if stage == "val" else stage
        if evaluation is not None:
            names = name_classes(class_names, len(evaluation.confusion))
            title = f"{split}: {100 * evaluation.accuracy:.2f} % of {evaluation.count:,} images correct"
            draw_confusion(evaluation, names, title, self._file("confusion_matrix.png"))
            scores = evaluation.scores(names)
            draw_classes(scores, f"Scores of the classes on the {split} images", self._file("per_class.png"))
            draw_reliability(scores, f"Confidence on the {split} images", self._file("reliability.png"))
            title = f"The most confident mistakes on the {split} images"
            draw_mistakes(evaluation, names, title, self._file("mistakes.png"))
        title, path = f"Attention rollout on {split} images", self._file("attention.png")
        try:
            draw_rollout(pl_module, trainer.datamodule.sets[stage], class_names, title, path)
        except Exception as error:  # of any kind: a picture must not end a training
            print(f"no attention.png: {' '.join(str(error).split())}", flush=True)

    def _file(self, name: str) -> Path:
        self.record.folder.mkdir(parents=True, exist_ok=True)
        return self.record.folder / name


@plot_style
def draw_curves(history: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Draw "train" points (epoch, loss, lr) and "val" points (epoch, loss, accuracy) over the epochs."""
    figure = Figure(figsize=(12, 3.6))
    loss, accuracy, rate = figure.subplots(1, 3)
    train, val = history["train"], history["val"]
    loss.plot(_column(train, "epoch"), _column(train, "loss"), color=BLUE, label="training (augmented)")
    if val:
        loss.plot(_column(val, "epoch"), _column(val, "loss"), "o-", ms=3, color=ORANGE, label="validation")
        accuracy.plot(_column(val, "epoch"), 100 * _column(val, "accuracy"), "o-", ms=3, color=ORANGE)
    loss.legend()
    rate.plot(_column(train, "epoch"), _column(train, "lr"), color=GREY)
    # In the title, because a label in the plot could cover the curve.
    last = f" (last: {100 * val[-1]['accuracy']:.2f})" if val else ""
    for axes, title in ((loss, "Loss"), (accuracy, f"Validation accuracy, %{last}"), (rate, "Learning rate")):
        axes.set(title=title, xlabel="epoch")
        axes.set_ylim(bottom=0 if axes is rate else None)
    figure.savefig(path)


def _column(points: list[dict[str, float]], name: str) -> np.ndarray:
    return np.array([point[name] for point in points])


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
    figure.savefig(path, dpi=120)


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
    figure.savefig(path)


def _row_label(row: dict[str, Any]) -> str:
    return f"{_cut(row['name'], CLASS_LETTERS)} ({row['support']:,})"


def _cut(name: str, letters: int) -> str:
    """Cut a long name, which would cover its neighbour."""
    return name if len(name) <= letters else f"{name[: letters - 3]}..."


@plot_style
def draw_reliability(scores: dict[str, Any], title: str, path: Path) -> None:
    """Draw the accuracy of the images of about the same confidence over their confidence, and their number below."""
    bins = scores["reliability"]
    filled = [row for row in bins if row["count"]]
    confidence, accuracy = (100 * _column(filled, name) for name in ("confidence", "accuracy"))
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
    below.bar(width * np.arange(len(bins)), _column(bins, "count"), width, align="edge", color=BLUE, edgecolor="white")
    below.set(xlabel="confidence of the prediction, %", ylabel="images")
    figure.savefig(path)


@plain_text
def draw_mistakes(evaluation: Evaluation, class_names: list[str], title: str, path: Path) -> None:
    """Draw the most confident mistakes: each image with its predicted class, the confidence, and its true class."""
    mistakes = evaluation.mistakes
    rows = max(1, -(-len(mistakes) // COLUMNS))
    width, height = CELL * COLUMNS, HEAD + (CELL + CAPTION) * rows
    figure = Figure(figsize=(width, height))
    # One Axes for all images: the layout of one for each image takes seconds.
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    axes.text(width / 2, HEAD / 2, title if mistakes else f"{title}: none", ha="center", va="center", fontsize=12)
    for index, (confidence, image, label, predicted) in enumerate(mistakes):
        top, left = HEAD + CAPTION + (CELL + CAPTION) * (index // COLUMNS), CELL * (index % COLUMNS)
        pixels = rearrange(image.numpy(), "c h w -> h w c")
        down, across = (0.9 * CELL * size / max(pixels.shape[:2]) for size in pixels.shape[:2])
        middle = left + CELL / 2
        axes.imshow(pixels, cmap="gray", extent=(middle - across / 2, middle + across / 2, top + down, top))
        said, true = (_cut(class_names[number], MISTAKE_LETTERS) for number in (predicted, label))
        caption = f"{said} ({100 * confidence:.0f} %)\ntrue: {true}"
        axes.text(middle, top - 0.04, caption, ha="center", va="bottom", fontsize=8, color=ORANGE)
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="auto")
    figure.savefig(path, dpi=120)
