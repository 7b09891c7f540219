"""What watches over each step: its seed, a loss that is no longer finite, the progress bar."""

import hashlib
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.trainer.states import TrainerFn

from vit.data.loader import BatchLoader


class SeededSteps(Callback):
    """Make all that is random about a step (order of images, dropout, ...) a function of the seed and the step alone.

    So a run that was killed and resumed at any step repeats what it would have drawn.

    Args:
        seed: Seed of the run.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the loader the epoch, which Lightning counts one too far after a resume at the end of one."""
        loader = trainer.train_dataloader
        if isinstance(loader, BatchLoader):
            loader.begin_epoch(trainer.current_epoch)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Seed torch for this step and process."""
        key = repr((self.seed, trainer.current_epoch, batch_idx, trainer.global_rank)).encode()
        torch.manual_seed(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) >> 1)


class StopAtNaN(Callback):
    """Stop when the loss is no longer finite, before a checkpoint is written.

    The step is found on the device; the host looks at it after each step on a CPU, and on a GPU, where
    looking would wait for it, every 50 steps and before each validation and checkpoint.
    """

    LOOK_EVERY = 50

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with no bad step."""
        self.first_bad_step = torch.full((), -1, dtype=torch.long, device=pl_module.device)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the step if its loss is the first bad one."""
        is_first = ~outputs["loss"].detach().isfinite() & (self.first_bad_step < 0)
        self.first_bad_step = torch.where(is_first, trainer.global_step, self.first_bad_step)
        if pl_module.device.type == "cpu" or (batch_idx + 1) % self.LOOK_EVERY == 0:
            self.look(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look before validation, whose end writes a checkpoint."""
        if trainer.state.fn == TrainerFn.FITTING:
            self.look(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look before the checkpoint of the epoch."""
        self.look(trainer)

    def look(self, trainer: Trainer) -> None:
        """Raise if there was a bad step.

        Raises:
            ValueError: With the step, and what to try.
        """
        step = int(self.first_bad_step)
        if step >= 0:
            raise ValueError(
                f"the loss is no longer finite, first at step {step}: try a lower --model.lr "
                f"({trainer.lightning_module.hparams.lr}), a longer --model.warmup, or --trainer.gradient_clip_val 1. "
                "The last good checkpoint is kept"
            )


class ImagesPerSecondBar(RichProgressBar):
    """Lightning's rich progress bar, with the images per second."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=10)
        self.images_per_second = 0.0

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """The logged values and the speed, without the version number of the run."""
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        speed = {"images/s": f"{self.images_per_second:,.0f}"} if self.images_per_second else {}
        return speed | metrics
