"""Small callbacks: seeded steps, stopping at NaN, the progress bar, predictions."""

import csv
import hashlib
import sys
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from torch import Tensor


class SeededSteps(Callback):
    """Make the random draws of each step (dropout, stochastic depth) a function of the seed and the step alone.

    So a run that was killed and resumed at any step repeats what it would have drawn.

    Args:
        seed: Seed of the run.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

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
        if trainer.training or (trainer.validating and hasattr(self, "first_bad_step")):
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


class PredictionWriter(Callback):
    """Write one row per image: file, class, probability, the five best; name the files that are no images.

    Args:
        path: The CSV file.
        class_names: Names of the classes, in the order of the logits.
    """

    TOP = 5

    def __init__(self, path: Path, class_names: list[str]) -> None:
        self.path = path
        self.class_names = class_names
        self.rows: list[dict[str, str]] = []
        self.unreadable: list[str] = []

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Tensor,
        batch: tuple[Tensor, list[str], list[str]],
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Collect the rows of a batch."""
        _, files, unreadable = batch
        self.unreadable += unreadable
        for file, probabilities in zip(files, outputs.cpu(), strict=True):
            values, classes = probabilities.topk(min(self.TOP, len(probabilities)))
            names = [self.class_names[number] for number in classes.tolist()]
            ranked = [f"{name} {value:.4f}" for name, value in zip(names, values.tolist(), strict=True)]
            self.rows.append(
                {
                    "file": file,
                    "class": names[0],
                    "probability": f"{values[0]:.4f}",
                    "top5": "; ".join(ranked),
                }
            )

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["file", "class", "probability", "top5"])
            writer.writeheader()
            writer.writerows(self.rows)
        for message in self.unreadable:
            print(message, file=sys.stderr)
        print(f"{len(self.rows)} predictions in {self.path}")
