"""Folders of runs: ``runs/EXPERIMENT/version_N``, with ``checkpoints/`` inside."""

from pathlib import Path

RUNS = Path("runs")


def new_run_folder(experiment: str) -> Path:
    """Return the folder for the next run of an experiment; it does not exist yet."""
    versions = [int(path.name.removeprefix("version_")) for path in (RUNS / experiment).glob("version_[0-9]*")]
    return RUNS / experiment / f"version_{max(versions, default=-1) + 1}"


def run_folder_of(checkpoint: Path | None) -> Path | None:
    """Return the folder of the run that wrote a checkpoint; None if the checkpoint is not in such a folder."""
    if checkpoint is None or checkpoint.parent.name != "checkpoints":
        return None
    return checkpoint.parent.parent


def experiment_of(config: Path) -> str:
    """Return the experiment of a config: the name of the file, or for the ``config.yaml`` of a run the run's.

    >>> experiment_of(Path("configs/digits.yaml")), experiment_of(Path("runs/digits/version_3/config.yaml"))
    ('digits', 'digits')
    """
    return config.parent.parent.name if config.name == "config.yaml" else config.stem


def newest_checkpoint(experiment: str, name: str) -> Path:
    """Return the newest checkpoint ``name`` ("last" or "best") among the runs of an experiment ("*": all).

    Raises:
        ValueError: If no run has such a checkpoint.
    """
    pattern = f"{experiment}/*/checkpoints/{name}.ckpt"
    paths = list(RUNS.glob(pattern))
    if not paths:
        raise ValueError(f"no checkpoint {RUNS / pattern}: train first, or name the file by --ckpt_path FILE")
    return max(paths, key=lambda path: path.stat().st_mtime)
