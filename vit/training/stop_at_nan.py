"""The stop of a training whose loss is no longer finite."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn


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
