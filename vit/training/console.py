"""The lines that a run prints: its header, a line per validation, its results, how to resume."""

import json
from pathlib import Path

from lightning import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from vit.training.measurements import Measurements
from vit.training.results import count_parameters, device_name


@rank_zero_only
def print_header(data: str, folder: Path, trainer: Trainer, pl_module: LightningModule) -> None:
    """Print the data, the model, the device and the folder of a run."""
    sets = trainer.datamodule.sets
    sizes = ", ".join(f"{len(sets[name].labels):,} {name}" for name in ("train", "val", "test") if name in sets)
    print(
        f"{data}: {sizes} images; {count_parameters(pl_module):,} parameters; {trainer.precision} on "
        f"{device_name(pl_module.device)}; {folder}",
        flush=True,
    )


@rank_zero_only
def print_validation(measurements: Measurements) -> None:
    """Print the last validation, with the training loss and the speed."""
    train, val = measurements.history["train"], measurements.history["val"][-1]
    loss = f"train_loss {train[-1]['loss']:.3f}  " if train else ""
    print(
        f"epoch {val['epoch']:.2f}  step {val['step']:,}  {loss}val_loss {val['loss']:.3f}  "
        f"val_accuracy {100 * val['accuracy']:.2f} %  {measurements.images_per_second:,.0f} images/s",
        flush=True,
    )


@rank_zero_only
def print_resume(folder: Path) -> None:
    """Print how to resume a run that was stopped."""
    last = folder / "checkpoints" / "last.ckpt"
    if last.exists():
        print(f"results so far: {folder / 'results.json'}")
        print(f"resume with: python train.py fit --ckpt_path {last}", flush=True)
    else:
        print("stopped before the first checkpoint: start again", flush=True)


@rank_zero_only
def print_results(folder: Path) -> None:
    """Print the accuracies of a run, and the files in its folder."""
    path = folder / "results.json"  # absent if a finished run is resumed and not tested
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in ("val_accuracy", "test_accuracy"):
        if results.get(name) is not None:
            print(f"{name}: {100 * results[name]:.2f} %")
    if (of_views := results.get("test_accuracy_views")) is not None:
        print(f"test_accuracy_views: {100 * of_views:.2f} % (test_views {results['test_views']})")
    print(f"run folder: {folder}")
    for name in ("results.json", "curves.png", "confusion_matrix.png", "mistakes.png", "attention.png"):
        if (folder / name).exists():
            print(f"  {folder / name}")
