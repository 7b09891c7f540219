"""A callback that writes down which images a process trained on; used by test_distributed.py."""

from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer


class SeenImages(Callback):
    """Append a line per image: the epoch, and its pixels as hexadecimal digits."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        with Path(f"seen_{trainer.world_size}_{trainer.global_rank}.txt").open("a") as file:
            for image in batch[0]:
                file.write(f"{trainer.current_epoch} {image.numpy().tobytes().hex()}\n")
