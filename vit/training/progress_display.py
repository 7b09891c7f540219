"""What the console shows of a training: the modules of the model, and the progress with images per second."""

import time
from datetime import timedelta
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelSummary, RichProgressBar


class ParameterSummary(ModelSummary):
    """Prints the modules of a model and their parameters; Lightning's table has a column of operations, all zero."""

    @staticmethod
    def summarize(summary_data: list[tuple[str, list[str]]], *_: Any, **__: Any) -> None:
        """Print a line for each module."""
        columns = dict(summary_data)
        for name, kind, count in zip(columns["Name"], columns["Type"], columns["Params"], strict=True):
            print(f"  {name}: {kind}, {count.strip()} parameters")


class ImagesPerSecondBar(RichProgressBar):
    """Lightning's rich progress bar of an epoch, with the images per second and the time left of the whole training."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=10)
        self.images_per_second = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the time of the start."""
        super().on_train_start(trainer, pl_module)
        self.start, self.done_before = time.monotonic(), None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Note how much of the training was done before the first step, which the module knows only now."""
        if self.done_before is None:
            self.done_before = pl_module.progress

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Return the logged values and the speed, without the version number of the run."""
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        speed = {"images/s": f"{self.images_per_second:,.0f}"} if self.images_per_second else {}
        left = self._time_left(pl_module.progress) if trainer.training else None
        return speed | metrics | ({"left": left} if left else {})

    def _time_left(self, progress: float) -> str | None:
        """Return the time to the end if the rest goes as fast as the part since the start, in hours, minutes, seconds.

        The progress is that of the schedule, by steps or by the clock, whichever ends the training.
        """
        done = progress - (progress if self.done_before is None else self.done_before)
        if done <= 0:
            return None
        seconds = (time.monotonic() - self.start) * (1 - progress) / done
        return str(timedelta(seconds=round(seconds)))
