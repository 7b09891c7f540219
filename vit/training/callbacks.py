"""The small callbacks of a training: seeds of each step, the stop at NaN, the progress bar."""

import math
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelSummary, RichProgressBar
from lightning.pytorch.trainer.states import TrainerFn

from vit.data.loader import BatchLoader
from vit.data.seeding import seed_of


class SeededSteps(Callback):
    """Make the random draws of a step (order of images, dropout, ...) a function of the seed and the step alone.

    A run that was killed and resumed at any step then draws what it would have drawn.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generators = (torch.Generator(), torch.Generator())

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Continue an epoch that a limit of steps or of time has cut: Lightning has counted it as a whole one."""
        loop = checkpoint["loops"]["fit_loop"]
        batches = loop["epoch_loop.batch_progress"]
        is_cut = batches["current"]["ready"] and not batches["is_last_batch"]
        for count in loop["epoch_progress"].values():
            if is_cut:
                count["processed"] = count["completed"] = min(count["completed"], count["ready"] - 1)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set Lightning's count of batches in a resumed epoch to that of the loader.

        They differ if the number of processes has changed, because batches then have another size. They also differ at
        the end of an epoch, where the loader counts from 0 again and Lightning still has all batches of the last epoch.
        """
        loader, done = trainer.train_dataloader, trainer.fit_loop.epoch_loop.batch_progress.current
        if isinstance(loader, BatchLoader) and done.ready:
            is_inside = loader.served or loader.sampler.shift
            not_counted = done.ready - done.completed
            done.ready = done.started = done.processed = loader.served if is_inside else len(loader)
            done.completed = done.ready - not_counted

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pass the epoch to the loader: Lightning's is one too high after a resume from the end of an epoch.

        Other loaders get their own generators, one for the order of the images and one for their workers. With torch's
        global generator, a resumed run would draw other numbers.
        """
        loader, key = trainer.train_dataloader, (self.seed, trainer.current_epoch, trainer.global_rank)
        if isinstance(loader, BatchLoader):
            loader.begin_epoch(trainer.current_epoch)
            return
        torch.manual_seed(seed_of(*key))
        for number, part in enumerate((loader, getattr(loader, "sampler", None))):
            if getattr(part, "generator", key) in (None, *self.generators):
                part.generator = self.generators[number].manual_seed(seed_of(*key, number))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Seed torch for this step and process."""
        torch.manual_seed(seed_of(self.seed, trainer.current_epoch, batch_idx, trainer.global_rank))


class StopAtNaN(Callback):
    """Stop when the loss of a step or of a validation is no longer finite, before a checkpoint is written.

    The device notes the first bad step. On a CPU, the host reads it after each step. On a GPU, where reading waits for
    the device, the host reads it every 50 steps, and before each validation and checkpoint.
    """

    READ_EVERY = 50

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start without a bad step, before Lightning's check of the validation."""
        self.first_bad_step = torch.full((), -1, dtype=torch.long, device=pl_module.device)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the step if its loss is the first bad one."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is None:  # with manual optimisation
            return
        is_first = ~loss.detach().isfinite() & (self.first_bad_step < 0)
        self.first_bad_step = torch.where(is_first, trainer.global_step, self.first_bad_step)
        if pl_module.device.type == "cpu" or (batch_idx + 1) % self.READ_EVERY == 0:
            self.check(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check before validation, at whose end a checkpoint is written."""
        if trainer.state.fn == TrainerFn.FITTING:
            self.check(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the loss of the validation, which shows first that the last step diverged."""
        loss = trainer.callback_metrics.get("val_loss", 0.0)
        if trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking and not math.isfinite(loss):
            raise ValueError(
                f"the validation loss ({loss:.3g}) is no longer finite, {_first_at(trainer.global_step, trainer)}"
            )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check before the checkpoint of the epoch."""
        self.check(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Check before any checkpoint of the training, such as that after a signal."""
        if trainer.state.fn == TrainerFn.FITTING and hasattr(self, "first_bad_step"):
            self.check(trainer)

    def check(self, trainer: Trainer) -> None:
        """Check that no step was bad.

        Raises:
            ValueError: With the first bad step, and the remedies.
        """
        step = int(self.first_bad_step)
        if step >= 0:
            raise ValueError(f"the loss is no longer finite, {_first_at(step, trainer)}")


def _first_at(step: int, trainer: Trainer) -> str:
    """Return the first bad step and the remedies, in words."""
    return (
        f"first at step {step}: try a lower --model.lr ({trainer.lightning_module.hparams.lr}), a longer "
        "--model.warmup, or --trainer.gradient_clip_val 1"
    )


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
