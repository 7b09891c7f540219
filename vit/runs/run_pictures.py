"""The pictures of a run: the curves of its training, and what its module draws of an evaluation."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only
from matplotlib.figure import Figure

from vit.data.module import ImageSet, Stage
from vit.runs.logged_pictures import log_pictures
from vit.runs.record import RunRecord
from vit.runs.splits import LoadedImages, has_split, splits_of
from vit.support.picture_files import save_figure
from vit.support.plotting import BLUE, GREY, ORANGE, plot_style
from vit.training.description import Score


class RunPictures(Callback):
    """Draw the curves of a training, and the other pictures of the last validation or test."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the curves."""
        self._draw_curves(trainer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Draw the last validation of a training, unless a test follows; EMA weights are in place since on_fit_end."""
        data = trainer.datamodule
        is_last = not (has_split(data, "test") and trainer.limit_test_batches)
        if stage == "fit" and has_split(data, "val") and is_last:
            self._draw_images(trainer, "val", pl_module.draw)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw a validation. During the training, most objectives draw nothing."""
        if not trainer.sanity_checking:
            is_fitting = trainer.state.fn == TrainerFn.FITTING
            self._draw_images(trainer, "val", pl_module.draw_validation if is_fitting else pl_module.draw)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the test."""
        self._draw_images(trainer, "test", pl_module.draw)

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
            path = self._file("curves.png")
            draw_curves(history, trainer.lightning_module.monitor, path)
            log_pictures(trainer.loggers, [path], trainer.global_step)

    @rank_zero_only
    def _draw_images(
        self, trainer: Trainer, stage: Stage, draw: Callable[[Path, str, ImageSet | LoadedImages], list[Path] | None]
    ) -> None:
        """Draw the pictures of the last evaluation, and log the files that ``draw`` returns; all if it returns None."""
        if not trainer.fast_dev_run:
            self.record.folder.mkdir(parents=True, exist_ok=True)
            split = "validation" if stage == "val" else stage
            try:
                drawn = draw(self.record.folder, split, splits_of(trainer)[stage])
                if drawn is None:
                    drawn = [path for path in sorted(self.record.folder.glob("*.png")) if path.stem != "curves"]
                log_pictures(trainer.loggers, drawn, trainer.global_step)
            except Exception as error:  # of any kind: a picture must not end a training
                print(f"not all pictures are drawn: {' '.join(str(error).split())}", flush=True)

    def _file(self, name: str) -> Path:
        self.record.folder.mkdir(parents=True, exist_ok=True)
        return self.record.folder / name


@plot_style
def draw_curves(history: dict[str, list[dict[str, float]]], monitor: Score, path: Path) -> None:
    """Draw "train" points (epoch, loss, lr) and "val" points (epoch, loss, monitored score) over the epochs."""
    # A run that an earlier version began may have been monitored by another score.
    train, val = history["train"], [point for point in history["val"] if monitor.name in point]
    panels = 3 if val else 2
    figure = Figure(figsize=(3.2 * panels, 3.2))
    loss, *scores, rate = figure.subplots(1, panels)
    loss.plot(_column(train, "epoch"), _column(train, "loss"), color=BLUE, label="training (augmented)")
    for score in scores:
        loss.plot(_column(val, "epoch"), _column(val, "loss"), "o-", ms=3, color=ORANGE, label="validation")
        values = (100 if monitor.unit else 1) * _column(val, monitor.name)
        score.plot(_column(val, "epoch"), values, "o-", ms=3, color=ORANGE)
        score.set_ylabel(monitor.unit)
        # The last value is in the title, because a label in the plot could cover the curve.
        last = monitor.text(val[-1][monitor.name])
        score.set_title(f"Validation {monitor.label[:1].lower()}{monitor.label[1:]}\n(last: {last})")
    figure.legend(loc="outside lower left", ncols=2)  # not in the plot, where it could cover the curves
    rate.plot(_column(train, "epoch"), _column(train, "lr"), color=GREY)
    rate.set_title("Learning rate")
    rate.set_ylim(bottom=0)
    loss.set_title("Loss")
    for axes in figure.axes:
        axes.set_xlabel("epoch")
    save_figure(figure, path)


def _column(points: list[dict[str, float]], name: str) -> np.ndarray:
    return np.array([point[name] for point in points])
