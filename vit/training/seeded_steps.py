"""Random draws of each step that depend on the seed and the step alone, so that a resumed run repeats them."""

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

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
