"""Overhead of training through Lightning: the share of an epoch that is not forward, backward and step.

Trains the same model at the same batch size, in alternating rounds in one process: through Lightning with the data
path, augmentation, logging and callbacks of a real run, and in a bare loop on one fixed batch, each eager and compiled.
The seconds of compiling, validation and checkpoints are left out. A cell is a precision and a device; it is written to
overhead.json and overhead.md, in place of an older one.

    python benchmarks/overhead.py [--rounds 5] [--batches 48] [--output benchmarks/results]
"""

import sys
import tempfile
import time
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning import Callback, Trainer
from records import command_line, comparison, provenance, write_cell
from side_by_side import DEVICE, compared, spread, synchronise
from torch import Tensor

from vit.commands.training_cli import fastest_precision
from vit.data.loader import MemoryLoader
from vit.data.module import ImageDataModule, ImageSet
from vit.objectives import ViTClassifier
from vit.runs.record import RunRecord
from vit.training.compilation import compile_for_training
from vit.training.optimizer import make_optimizer
from vit.training.seeded_steps import SeededSteps
from vit.training.stop_at_nan import StopAtNaN

BATCH = 128
MODEL = {"embed_dim": 96, "depth": 6, "num_heads": 3, "mlp_ratio": 2.0, "pool": "cls+mean"}
AUGMENTATION = {"crop_padding": 4, "flip": True}

REPORT = """# Training through Lightning against a bare loop

The model of configs/cifar10_quick.yaml on all patches, AdamW, batches of 128: through Lightning with data path,
augmentation, logging and callbacks, and in a loop of forward, backward and step on one fixed batch; each eager and with
`compile: true`. The seconds of compiling, validation and checkpoints are left out of the measurement. The four take
turns in one process; numbers are medians over the rounds, with quartiles.
"""


class RandomImages(ImageDataModule):
    """Noise in the shape of CIFAR-10, in memory; the speed does not depend on the pixels."""

    num_classes, image_size, in_channels = 10, (32, 32), 3

    def load_sets(self) -> dict[str, ImageSet]:
        """Return 50,000 training images."""
        images = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8)
        return {"train": ImageSet(images, torch.randint(0, 10, (50_000,)))}


class Clock(Callback):
    """Measures the seconds from the end of the third batch to the end of the last."""

    WARM_UP = 3

    def on_train_batch_end(self, trainer: Trainer, module: ViTClassifier, *args: object) -> None:
        """Start after the warm-up and stop at the last batch, each when the device has done its work."""
        if trainer.global_step in (self.WARM_UP, trainer.max_steps):
            synchronise(DEVICE)
        if trainer.global_step == self.WARM_UP:
            self.start = time.perf_counter()
        self.seconds = time.perf_counter() - getattr(self, "start", 0.0)


def through_lightning(batches: int, precision: str, compile: bool = False) -> float:
    """Return the images per second through Lightning."""
    torch.compiler.reset()  # or models of earlier rounds count towards the limit of programs
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        return _fit(batches, precision, Path(folder), compile)


def _fit(batches: int, precision: str, folder: Path, compile: bool) -> float:
    data = RandomImages(batch_size=BATCH, val_fraction=0.0, **AUGMENTATION)
    record = RunRecord(folder, {"data": "noise"}, "", {})
    clock = Clock()
    trainer = Trainer(
        max_steps=batches + Clock.WARM_UP,
        limit_val_batches=0,
        accelerator="gpu" if DEVICE.type == "cuda" else "cpu",
        devices=1,
        precision=precision,
        callbacks=[SeededSteps(0), StopAtNaN(), record, clock],
        gradient_clip_val=1.0,
        log_every_n_steps=20,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(ViTClassifier(mean=[0.5] * 3, std=[0.25] * 3, compile=compile, **MODEL), datamodule=data)
    return batches * BATCH / clock.seconds


def bare_loop(batches: int, precision: str, compile: bool = False) -> float:
    """Return the images per second of forward, backward and step on one batch."""
    torch.compiler.reset()
    model = ViTClassifier(mean=[0.5] * 3, std=[0.25] * 3, **MODEL)
    model.to(DEVICE)
    if compile:
        with redirect_stdout(sys.stderr):
            compile_for_training(model.network, DEVICE)
    optimizer = make_optimizer("adamw", model.network, 1e-3, 0.05, (0.9, 0.99))
    images, labels = _fixed_batch()
    for batch in range(batches + Clock.WARM_UP):
        if batch == Clock.WARM_UP:
            synchronise(DEVICE)
            start = time.perf_counter()
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=precision == "bf16-mixed"):
            loss = F.cross_entropy(model(images).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    synchronise(DEVICE)
    return batches * BATCH / (time.perf_counter() - start)


def _fixed_batch() -> tuple[Tensor, Tensor]:
    data = RandomImages(batch_size=BATCH, val_fraction=0.0)
    data.setup("fit")
    loader: MemoryLoader = data.train_dataloader()
    images, labels = next(iter(loader))
    return images.to(DEVICE), labels.to(DEVICE)


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    return comparison(REPORT, cells, _settings, _readable)


def _settings(cell: dict[str, Any]) -> str:
    return f"{cell['rounds']} rounds of {cell['batches']} batches."


def _readable(training: str, row: dict[str, Any]) -> dict[str, str]:
    return {
        "training": training,
        "images per second": spread(row["images_per_second"], ",.0f"),
        "against the bare loop alike": spread(row["against_best_peer"], ".3f"),
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure them in turn, write the cell, and print all cells."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each")
    parser.add_argument("--batches", type=int, default=48, help="batches of 128 images per measurement")
    options = parser.parse_args(arguments)
    precision = fastest_precision("auto")
    cell = provenance()
    measures = {
        "Lightning": through_lightning,
        "Lightning, compiled": partial(through_lightning, compile=True),
        "bare loop": bare_loop,
        "bare loop, compiled": partial(bare_loop, compile=True),
    }
    speeds: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(options.rounds):
        for name in measures if turn % 2 == 0 else reversed(measures):
            speeds[name].append(measures[name](options.batches, precision))
    seconds_per_image = {name: [1 / speed for speed in each] for name, each in speeds.items()}
    cell |= {"rounds": options.rounds, "batches": options.batches}
    cell["rows"] = {}
    for loop in ("bare loop", "bare loop, compiled"):
        alike = {name: each for name, each in seconds_per_image.items() if ("compiled" in name) == ("compiled" in loop)}
        cell["rows"] |= compared(alike, 1, [loop])
    path = options.output / "overhead.json"
    write_cell(path, f"{precision} {DEVICE.type}", cell, report)
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
