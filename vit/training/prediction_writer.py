"""A callback that writes predictions to a CSV file."""

import csv
import sys
from pathlib import Path

from lightning import Callback, LightningModule, Trainer
from torch import Tensor


class PredictionWriter(Callback):
    """Write one row per image (file, class, probability, the five best classes), and print the unreadable files."""

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
        """Add the rows of a batch."""
        _, files, unreadable = batch
        self.unreadable += unreadable
        for file, probabilities in zip(files, outputs.cpu(), strict=True):
            values, classes = probabilities.topk(min(self.TOP, len(probabilities)))
            names = [self.class_names[number] for number in classes.tolist()]
            ranked = [f"{name} {value:.4f}" for name, value in zip(names, values.tolist(), strict=True)]
            row = {"file": file, "class": names[0], "probability": f"{values[0]:.4f}", "top5": "; ".join(ranked)}
            self.rows.append(row)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file, and print the messages about unreadable files."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["file", "class", "probability", "top5"])
            writer.writeheader()
            writer.writerows(self.rows)
        for message in self.unreadable:
            print(message, file=sys.stderr)
        print(f"{len(self.rows)} predictions in {self.path}")
