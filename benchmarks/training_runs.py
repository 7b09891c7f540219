"""Runs of train.py, each in a process of its own, and their results."""

import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import Any

from records import RESULTS

TRAIN = Path(__file__).parents[1] / "train.py"


# What a result keeps of a training that it uses.
FACTS = ("test_accuracy", "seed", "steps", "seconds", "parameters", "command")


def check_splits(data: Path) -> None:
    """End the program if a folder of images has no train/ or no test/."""
    for split in ("train", "test"):
        if not (data / split).is_dir():
            raise SystemExit(f"error: no folder {data / split}: --data names one with train/ and test/")


class TrainingError(Exception):
    """A run that failed; the message is one line."""


def train(name: str, arguments: list[str], threads: int | None = None) -> dict[str, Any]:
    """Train, pass the run's output on to stderr, and return its results.json with the last logged "val_loss".

    Args:
        name: Name of the run on stderr and in errors.
        arguments: What follows ``python train.py fit``.
        threads: Threads of the run; None is PyTorch's default.

    Raises:
        TrainingError: If the run fails.
    """
    environment = os.environ | {"PYTHONUNBUFFERED": "1"} | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    started = [sys.executable, str(TRAIN), "fit", *arguments]
    last, folder = "no output", None
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with (
        tempfile.TemporaryDirectory() as programs,  # torch.compile starts without those of earlier runs
        subprocess.Popen(started, env=environment | {"TORCHINDUCTOR_CACHE_DIR": programs}, **output) as process,
    ):
        for line in process.stdout:
            print(f"{name}: {line}", end="", file=sys.stderr, flush=True)
            last = line.strip() or last
            if line.startswith("run folder: "):
                folder = Path(line.removeprefix("run folder: ").strip())
    if process.returncode:
        raise TrainingError(f"{name} failed with exit status {process.returncode}: {last}")
    if folder is None:
        raise TrainingError(f"{name} printed no run folder; its last line: {last}")
    results = json.loads((folder / "results.json").read_text())
    return results | {"val_loss": _last_logged(folder / "metrics.csv", "val_loss")}


def finished(runs: dict[Future[dict[str, Any]], Any]) -> Iterator[tuple[Any, dict[str, Any] | None]]:
    """Yield each run and its results as it ends; a run that failed has None, and a line on stderr."""
    for done in as_completed(runs):
        try:
            yield runs[done], done.result()
        except TrainingError as error:
            print(f"error: {error}", file=sys.stderr)
            yield runs[done], None


def described(arguments: list[str]) -> str:
    """Return all arguments of a run as ``--print_config`` prints them; "" if train.py refuses them."""
    asked = [sys.executable, str(TRAIN), "fit", *arguments, "--print_config"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout


def about_training(checkpoint: Path) -> dict[str, Any]:
    """Return recipe and facts of the training that a checkpoint is of, and its commit where reproduce.py ran it.

    Raises:
        ValueError: If the run has no results.json, as one that has not ended.
    """
    run = checkpoint.resolve().parent.parent
    results = run / "results.json"
    if not results.is_file():
        raise ValueError(f"no {results}: give checkpoints of finished runs, in runs/EXPERIMENT/VERSION/checkpoints")
    found = json.loads(results.read_text())
    at = re.search(r"/reproduce/([0-9a-f]{7})/runs/", run.as_posix())
    return {"recipe": run.parent.name} | {key: found.get(key) for key in FACTS} | ({"commit": at[1]} if at else {})


def about_packaged() -> dict[str, Any]:
    """Return recipe, facts and commit of the training that made the packaged model."""
    cell = json.loads((RESULTS / "accuracy.json").read_text())["cifar10_showcase, cpu, seed 0"]
    return {key: cell[key] for key in ("recipe", *FACTS, "commit")}


def _last_logged(path: Path, column: str) -> float | None:
    """Return the last number of a column of metrics.csv, in which most cells are empty; None without the file."""
    if not path.exists():
        return None
    with path.open() as file:
        values = [row[column] for row in csv.DictReader(file) if row.get(column)]
    return float(values[-1]) if values else None
