"""Folders of runs: ``runs/EXPERIMENT/version_N``, with ``checkpoints/`` and ``evaluations/`` inside."""

import os
import re
import shutil
from itertools import count
from pathlib import Path
from typing import Any

from vit.support.files import sweep

RUNS = Path("runs")
# A finished training is not continued if these options, its length, are the same.
LENGTH_OPTIONS = ("max_epochs", "min_epochs", "max_steps", "min_steps", "max_time")


def check_experiment(name: str) -> None:
    r"""Check that the name of an experiment is the name of one folder, and not a pattern.

    >>> check_experiment("a[1]")
    Traceback (most recent call last):
    ValueError: experiment ('a[1]') must be the name of one folder, such as 'digits', without /\:*?[]: set --experiment

    Raises:
        ValueError: If it is not.
    """
    if not re.fullmatch(r"[^\0/\\:*?\[\]]+", name) or name in (".", ".."):
        raise ValueError(
            f"experiment ({name!r}) must be the name of one folder, such as 'digits', without /\\:*?[]: set "
            "--experiment"
        )


def next_number(parent: Path, prefix: str) -> int:
    """Return the number after the largest N of the folders ``parent/prefix_N``; 0 if there are none."""
    numbers = [path.name.removeprefix(f"{prefix}_") for path in parent.glob(f"{prefix}_*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1


def claim_folder(parent: Path, prefix: str) -> Path:
    """Create and return ``parent/prefix_N`` with the next free N; no two processes get the same folder.

    Raises:
        ValueError: If the folder cannot be created.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        sweep(parent)
        for number in count(next_number(parent, prefix)):
            folder = parent / f"{prefix}_{number}"
            try:
                folder.mkdir()
            except FileExistsError:  # claimed by a run that started at the same time
                continue
            return folder
    except OSError as error:
        raise ValueError(
            f"cannot create a folder in {parent} ({error.strerror}): runs are kept below {RUNS}/ of the current "
            "folder; start in a folder that you may write to, or name one by --trainer.default_root_dir"
        ) from None


def is_writable(folder: Path) -> bool:
    """Return whether a folder, or if it does not exist the nearest one above it, may be written to."""
    return os.access(next(filter(Path.exists, (folder, *folder.parents))), os.W_OK)


def discard_if_unused(folder: Path) -> None:
    """Delete the folder of a run that ended before its first checkpoint and its first results."""
    if not (folder / "results.json").exists() and not any(folder.glob("checkpoints/*")):
        shutil.rmtree(folder, ignore_errors=True)


def run_folder_of(checkpoint: Path | None) -> Path | None:
    """Return the folder of the run that wrote a checkpoint; None if the checkpoint is not in such a folder."""
    if checkpoint is None or checkpoint.parent.name != "checkpoints":
        return None
    return checkpoint.parent.parent


def experiment_of(config: Path) -> str:
    """Return the experiment of a config: the name of its file, or for the ``config.yaml`` of a run, that of the run.

    >>> experiment_of(Path("configs/digits.yaml")), experiment_of(Path("runs/digits/version_3/config.yaml"))
    ('digits', 'digits')
    """
    return config.parent.parent.name if config.name == "config.yaml" else config.stem


def newest_checkpoint(experiment: str, name: str, runs: Path = RUNS) -> Path:
    """Return the checkpoint ``name`` ("last" or "best") of the newest run of an experiment ("*": of all).

    The newest run is that of the newest checkpoint: a resumed run may have copied the one that is asked for.

    Raises:
        ValueError: If no run has such a checkpoint.
    """
    pattern = f"{experiment}/*/checkpoints/{name}.ckpt"
    paths = list(runs.glob(pattern))
    if not paths:
        raise ValueError(f"no checkpoint {runs / pattern}: train first, or name the file of a model")

    def age(path: Path) -> tuple[float, float]:
        return max(each.stat().st_mtime for each in path.parent.iterdir()), path.parents[1].stat().st_mtime

    return max(paths, key=age)


def newest_first(experiment: str, runs: Path = RUNS) -> list[Path]:
    """Return all checkpoints of the runs of an experiment, the newest first.

    Of equal age, such as a copy that a resumed run has made, that of the newest run is first, and there ``last.ckpt``.
    """

    def age(path: Path) -> tuple[float, float, bool]:
        return path.stat().st_mtime, path.parents[1].stat().st_mtime, path.stem == "last"

    return sorted(runs.glob(f"{experiment}/*/checkpoints/*.ckpt"), key=age, reverse=True)


def has_same_length(config: Path, trainer: dict[str, Any]) -> bool:
    """Return whether the ``config.yaml`` of a run asks for a training as long as the options of a trainer do."""
    import yaml

    before = yaml.safe_load(config.read_text(encoding="utf-8")).get("trainer") or {}
    return all(str(before.get(name)) == str(trainer.get(name)) for name in LENGTH_OPTIONS)
