"""A callback that makes training steps reproducible one by one."""

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from vit.data.loader import BatchLoader
from vit.data.seeding import seed_of


class SeededSteps(Callback):
    """Make the random draws of a step (order of images, dropout, ...) a function of the seed and the step alone.

    A run that was killed and resumed at any step then draws what it would have drawn.

    Args:
        seed: Seed of the run.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pass the epoch to the loader: Lightning's is one too high after a resume from the end of an epoch."""
        loader = trainer.train_dataloader
        if isinstance(loader, BatchLoader):
            loader.begin_epoch(trainer.current_epoch)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Seed torch for this step and process."""
        torch.manual_seed(seed_of(self.seed, trainer.current_epoch, batch_idx, trainer.global_rank))
