"""Signals of a cluster: a training that has to make room leaves a checkpoint, from which the next start goes on."""

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
EVERY = 4  # batches, after which processes agree: the host waits for the device then


class Preemption(Checkpoint):
    """Stop a training between two steps at SIGTERM, and leave a checkpoint.

    Slurm's requeue signal, which is SIGUSR1 unless the plugin SLURMEnvironment names another, also puts the job back
    into the queue. A signal to one process stops all: they agree after every fourth batch.

    Args:
        checkpoint: The file to write.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.asked = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the signals for which Lightning registers.

        Its own functions send in the middle of a step what no other process waits for, and save beside no run.
        """
        signals = trainer._signal_connector
        signals._sigterm_notifier_fn = lambda *_: self._note(trainer, STOP)
        signals._slurm_sigusr_handler_fn = lambda *_: self._note(trainer, REQUEUE)

    def _note(self, trainer: Trainer, asked: int) -> None:
        self.asked = max(self.asked, asked)
        if trainer.state.fn != TrainerFn.FITTING:  # but the test after it: the training has left its checkpoint
            self._stop(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop if a signal came, unless gradients add up or a validation follows: a resumed run would omit them."""
        is_pending = trainer.is_last_batch or (batch_idx + 1) % trainer.accumulate_grad_batches
        is_due = trainer.world_size == 1 or (trainer.fit_loop.total_batch_idx + 1) % EVERY == 0
        if is_due and self._agree(trainer) and not is_pending and not _validates_next(trainer, batch_idx):
            trainer.save_checkpoint(self.checkpoint)
            self._stop(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop before the test if a signal came in the last step or after it, which has left its checkpoint."""
        if self._agree(trainer):
            self._stop(trainer)

    def _agree(self, trainer: Trainer) -> bool:
        """Note what any of the processes was asked, and return whether it is something."""
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
