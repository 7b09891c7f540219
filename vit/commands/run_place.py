"""The experiment of a run, and the folder that a run, an evaluation or a prediction writes into."""

from collections.abc import Sequence
from pathlib import Path

from lightning import LightningDataModule
from lightning.pytorch.utilities import rank_zero_only

from vit.data import ImageFolder
from vit.runs.folders import (
    RUNS,
    check_experiment,
    claim_folder,
    experiment_of,
    is_writable,
    next_number,
    run_folder_of,
)


def experiment_name(given: str | None, origin: Path | None, configs: Sequence[Path], data: LightningDataModule) -> str:
    """Return the name that is given, or else that of the run to go on from, of the last config file, or of the data."""
    if given:
        return given
    if origin is not None:
        return origin.parent.name
    return experiment_of(configs[-1]) if configs else data_name(data)


def data_name(data: LightningDataModule) -> str:
    """Return the name of the folder of images, or of the data set."""
    return data.root.resolve().name if isinstance(data, ImageFolder) else type(data).__name__.lower()


def choose_folder(
    subcommand: str | None, experiment: str, root: Path, checkpoint: Path | None, claim: bool
) -> tuple[Path, bool]:
    """Return a new folder for a run or an evaluation, or for ``predict`` the folder of the run; and whether it is made.

    Only the first process makes a folder, and only if ``claim`` says so; the others do not write to the path that they
    get. An evaluation of a run that cannot be written is in a folder of the experiment, and its predictions are in the
    present folder.

    Raises:
        ValueError: If the experiment is no name of a folder.
    """
    check_experiment(experiment)
    origin, evaluates = run_folder_of(checkpoint), subcommand in ("test", "validate")
    if origin is not None and not is_writable(origin / "evaluations" if evaluates else origin):  # of another user
        origin = None
    if subcommand == "predict":
        return origin or Path(), False
    of_experiment = root / RUNS / experiment
    parent = (origin or of_experiment) / "evaluations" if evaluates else of_experiment
    prefix = f"{subcommand}_{checkpoint.stem}" if evaluates else "version"
    if subcommand is None:  # Python code that may train with what was built
        return parent / f"{prefix}_{next_number(parent, prefix)}", False
    if not claim or rank_zero_only.rank != 0:
        return parent / f"{prefix}_0", False
    return claim_folder(parent, prefix), True
