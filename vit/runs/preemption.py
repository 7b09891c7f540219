"""Signals of a cluster: a training that has to make room leaves a checkpoint, from which the next start continues."""

import math
import os
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException

STOP, REQUEUE = 1, 2
EVERY = 4  # batches from one agreement of the processes to the next: each makes the host wait for the device


class Preemption(Checkpoint):
    """Stop a training between two steps at SIGTERM, and leave a checkpoint.

    Slurm's requeue signal, which is SIGUSR1 unless the plugin SLURMEnvironment names another, also puts the job back
    into the queue. A signal to one process stops all: they agree after every fourth batch and at the end of an epoch.

    Args:
        checkpoint: The file to write.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.asked = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Replace Lightning's handlers of the signals.

        These would communicate in the middle of a step, when no other process expects it, and save outside of the run.
        """
        signals = trainer._signal_connector
        signals._sigterm_notifier_fn = lambda *_: self._note(trainer, STOP)
        signals._slurm_sigusr_handler_fn = lambda *_: self._note(trainer, REQUEUE)

    def _note(self, trainer: Trainer, asked: int) -> None:
        self.asked = max(self.asked, asked)
        if trainer.state.fn != TrainerFn.FITTING:  # the test after the training, which has left its checkpoint
            self._stop(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop if a signal came, unless gradients accumulate or a validation is due: a resumed run would skip these."""
        is_pending = trainer.is_last_batch or (batch_idx + 1) % trainer.accumulate_grad_batches
        is_due = trainer.world_size == 1 or (batch_idx + 1) % EVERY == 0
        if is_due and self._agree(trainer) and not is_pending and not _validates_next(trainer, batch_idx):
            trainer.save_checkpoint(self.checkpoint)
            self._stop(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop after an epoch of a few batches if a signal came, as none of them may be one to stop after.

        The checkpoint of the epoch is written. Longer epochs go on: Lightning has steps of its own after this one.
        """
        is_short = trainer.num_training_batches <= EVERY * trainer.accumulate_grad_batches
        if is_short and self._agree(trainer):
            self._stop(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop before the test if a signal came in the last step or later; the training has left its checkpoint."""
        if self._agree(trainer):
            self._stop(trainer)

    def _agree(self, trainer: Trainer) -> bool:
        """Share the signals among the processes, and return whether one of them got any."""
        if trainer.world_size > 1:
            asked = torch.tensor(self.asked, device=trainer.strategy.root_device)
            self.asked = int(trainer.strategy.reduce(asked, reduce_op="max"))
        return self.asked > 0

    def _stop(self, trainer: Trainer) -> NoReturn:
        if self.asked == REQUEUE and trainer.is_global_zero:
            array = os.environ.get("SLURM_ARRAY_JOB_ID")
            job = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]
            subprocess.run(["scontrol", "requeue", job], check=False)
        raise SIGTERMException


def _validates_next(trainer: Trainer, batch_idx: int) -> bool:
    """Return whether a validation follows this batch, by the count of the epoch or of the whole training."""
    done = 1 + (batch_idx if trainer.check_val_every_n_epoch else trainer.fit_loop.total_batch_idx)
    return done % (trainer.val_check_batch or math.inf) == 0
