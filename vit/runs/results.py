"""``results.json``: scores, speed, and how a run was made."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer

from vit.objectives import DEFAULT, OBJECTIVES
from vit.runs.measurements import Measurements
from vit.runs.splits import count_images, splits_of
from vit.support.files import replacing
from vit.training.description import SPACE, Score
from vit.training.objective import Objective


def write_results(
    path: Path,
    facts: dict[str, Any],
    measurements: Measurements,
    trainer: Trainer,
    pl_module: LightningModule,
    ending: dict[str, Any],
) -> None:
    """Write what is known before a run (``facts``), its measurements, and its ``ending``.

    The ending has the "scores" of the last evaluation and which images were "scored", and "finished" or the exception
    that "stopped" the run.
    """
    measured, monitor = measurements.measured, pl_module.monitor.name
    results: dict[str, Any] = {f"test_{monitor}": None} | pl_module.test_fields | {f"val_{monitor}": None}
    known = {name: measured[name] for name in results if name in measured}
    # JSON has no NaN, such as of an average over classes that no image shows.
    results |= {name: None if value != value else value for name, value in known.items()} | facts
    if measured["images"]:
        results |= {
            "epochs": round(epochs_done(trainer, measurements), 2),
            "steps": trainer.global_step,
            "seconds": round(measured["seconds"], 1),
            "petaflop": round(measured["flop"] / 1e15, 4),
            "images_per_second": round(measurements.images_per_second, 1),
        }
        if late := policy_from(trainer):
            results["policy_epochs"] = round(max(0.0, results["epochs"] - late), 2)
    if (inventory := getattr(trainer.datamodule, "inventory", None)) is not None:
        results["inventory"] = inventory.lines
    if groups := groups_of(trainer):
        results["groups"] = groups
    if made_worse := getattr(trainer.datamodule, "made_worse", []):
        results["made_worse"] = made_worse
    results |= {
        "parameters": count_parameters(pl_module),
        "device": device_name(pl_module.device),
        "devices": trainer.world_size,
        "precision": str(trainer.precision),
        "torch": torch.__version__,
        "objective": type(pl_module).__name__,
        **tested_file(results, path.parent, f"test_{monitor}"),
        **ending,
    }
    with replacing(path) as unfinished:
        unfinished.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def read_results(folder: Path) -> dict[str, Any]:
    """Return the ``results.json`` of a run or of an evaluation; {} if it has none."""
    path = folder / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def known_scores(results: Mapping[str, Any]) -> dict[Score, float]:
    """Return the scores that an objective names: the monitored one of test and validation images, and its columns."""
    objective = objective_of(results)
    monitor, known = objective.monitor, {**results, **(results.get("scores") or {})}
    label = f"{monitor.label[0].lower()}{monitor.label[1:]}"
    monitored = [
        replace(monitor, name=f"{short}_{monitor.name}", label=f"{long} {label}")
        for short, long in (("test", "Test"), ("val", "Validation"))
    ]
    return {score: known[score.name] for score in (*monitored, *objective.columns) if known.get(score.name) is not None}


def objective_of(results: Mapping[str, Any]) -> type[Objective]:
    """Return the objective of a run; the default one if the results name none, or a class that is not imported."""
    name = results.get("objective")
    return OBJECTIVES.get(name) or _subclass_named(name, Objective) or DEFAULT


def _subclass_named(name: str | None, base: type[Objective]) -> type[Objective] | None:
    """Return the user's own class of this name, if this process has imported it; else None."""
    below = base.__subclasses__()
    return next((cls for cls in below if cls.__name__ == name), None) or next(
        filter(None, (_subclass_named(name, cls) for cls in below)), None
    )


def in_terminal(score: Score, value: float) -> str:
    """Return a score as a terminal shows it."""
    return score.text(value).replace(SPACE, " ")


def tested_file(results: dict[str, Any], folder: Path, score: str) -> dict[str, str | None]:
    """Return the file of the weights that were tested, and its SHA-256; {} if no test has given a ``score``.

    The SHA-256 is None for weights that are not a single file, such as packaged ones or a folder.
    """
    if results.get(score) is None:
        return {}
    path = Path(results.get("checkpoint") or folder / "checkpoints" / f"{results.get('test_weights')}.ckpt")
    if "checkpoint" not in results and not path.exists():  # a training that keeps none
        return {}
    return {"tested_file": str(path), "tested_sha256": results.get("tested_sha256") or sha256_of(path)}


def sha256_of(path: Path) -> str | None:
    """Return the SHA-256 of a file; None for what is not a single file."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def groups_of(trainer: Trainer) -> dict[str, int]:
    """Return the number of groups of the validation and test images, such as patients; {} if no image has one."""
    found = {split: getattr(images, "groups", None) for split, images in splits_of(trainer).items() if split != "train"}
    return {split: len(groups.unique()) for split, groups in found.items() if groups is not None}


def epochs_done(trainer: Trainer, measurements: Measurements) -> float:
    """Return how often each training image was seen, on average; the epochs begun if their number is not known."""
    train = splits_of(trainer).get("train")
    if train is not None:  # the test after a training has no training images any more
        measurements.train_images = count_images(train)
    count = measurements.train_images
    return measurements.measured["images"] / count if count else float(trainer.current_epoch)


def policy_from(trainer: Trainer) -> int:
    """Return the number of epochs before the policy of augmentation begins; 0 if there is none, or from the start."""
    augmentation = getattr(trainer.datamodule, "augmentation", {})
    return 0 if augmentation.get("policy", "none") == "none" else augmentation["policy_from"]


def count_parameters(pl_module: LightningModule) -> int:
    """Return the number of parameters of the model."""
    return sum(parameter.numel() for parameter in pl_module.parameters())


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or the number of threads of a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        threads = torch.get_num_threads()
        return f"cpu, {threads} thread{'s' if threads > 1 else ''}"
    return device.type
