"""Several runs of one training, for folds of cross-validation and seeds: what they share, and which are finished."""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from vit.data.shards import Shards
from vit.runs.results import read_results
from vit.support.files import replacing

# Options that differ between the runs of one training.
OF_EACH_RUN = ("config", "ckpt_path", "experiment", "seed_everything")


@dataclass(frozen=True)
class Member:
    """One of several runs of a training.

    >>> Member(fold=0, seed=3).name
    'fold 0, seed 3'

    Attributes:
        fold: The fold that it tests; None if there are no folds.
        seed: Its seed.
    """

    fold: int | None
    seed: int

    @property
    def name(self) -> str:
        """Its fold and its seed."""
        return f"seed {self.seed}" if self.fold is None else f"fold {self.fold}, seed {self.seed}"


def common_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that all runs of a training share: all but fold, seed, experiment and checkpoint."""
    data = dict(config.get("data") or {})
    data["init_args"] = {k: value for k, value in data.get("init_args", {}).items() if k not in ("fold", "seed")}
    return {name: value for name, value in config.items() if name not in OF_EACH_RUN} | {"data": data}


def find_runs(experiment: Path, config: Mapping[str, Any]) -> dict[Member, list[Path]]:
    """Return the folders of the runs of a training, the latest one last.

    Args:
        experiment: The folder of the experiment, which may have other runs, too.
        config: All options of one of the runs.
    """
    found: dict[Member, list[Path]] = {}
    paths = [path for path in experiment.glob("version_*/config.yaml") if _version(path.parent).isdecimal()]
    for path in sorted(paths, key=lambda path: int(_version(path.parent))):
        of_run = yaml.safe_load(path.read_text(encoding="utf-8"))
        if _noted_by_runs(of_run) == _noted_by_runs(config):
            member = Member(of_run["data"].get("init_args", {}).get("fold"), int(of_run["seed_everything"]))
            found.setdefault(member, []).append(path.parent)
    return found


def _version(folder: Path) -> str:
    return folder.name.removeprefix("version_")


def _noted_by_runs(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the common settings without the precision, which a run may have chosen, and the weights to start from."""
    settings = common_settings(config)
    model, trainer = (dict(settings.get(name) or {}) for name in ("model", "trainer"))
    model["init_args"] = {k: value for k, value in model.get("init_args", {}).items() if k != "init_from"}
    trainer.pop("precision", None)
    return settings | {"model": model, "trainer": trainer}


def finished_run(folders: list[Path]) -> Path | None:
    """Return the latest of the folders whose run is finished; None if none is."""
    return next((folder for folder in reversed(folders) if read_results(folder).get("finished")), None)


def last_checkpoint(folders: list[Path]) -> Path | None:
    """Return the checkpoint of the latest run that has one; None if none has."""
    paths = (folder / "checkpoints" / "last.ckpt" for folder in reversed(folders))
    return next((path for path in paths if path.exists()), None)


def claim_experiment(folder: Path, config: Mapping[str, Any], data: Any) -> None:
    """Note the options and the images of several runs in the folder of their experiment.

    Args:
        folder: The folder, which may have runs of the same options and images.
        config: All options of one of the runs.
        data: Their data module.

    Raises:
        ValueError: If the folder has other runs.
    """
    path, remedy = folder / "config.yaml", "choose another name by --experiment"
    noted = {"images": f"{zlib.crc32(repr(_images_of(data)).encode()):08x}", "fit": dict(config)}
    has_runs = any(folder.glob("version_*"))
    if has_runs and not path.exists():
        raise ValueError(f"{folder} has runs of other trainings: {remedy}")
    if not has_runs:
        with replacing(path) as unfinished:
            unfinished.write_text(yaml.safe_dump(noted, sort_keys=False), encoding="utf-8")
        return
    before = yaml.safe_load(path.read_text(encoding="utf-8"))
    if before["images"] != noted["images"]:
        raise ValueError(f"the images, their labels or groups changed since the first run of {folder}: {remedy}")
    theirs, ours = (dict(_options(common_settings(each["fit"]))) for each in (before, noted))
    for name in theirs | ours:
        if theirs.get(name) != ours.get(name):
            raise ValueError(f"the runs of {folder} have {name} {theirs.get(name)}, not {ours.get(name)}: {remedy}")


def _images_of(data: Any) -> list[Any]:
    """Return the files and labels of each split of a data module, and the group of each file, as plain lists."""
    splits = getattr(data, "splits", None)
    if isinstance(data, Shards):  # which has arrays, or parts of them
        splits = {stage: ([*map(str, paths)], np.asarray(labels).tolist()) for stage, (paths, labels) in splits.items()}
    return [splits, getattr(data, "groups", None)]


def _options(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by the names of their options."""
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _options(value, prefix if name == "init_args" else f"{prefix}{name}.")
        else:
            yield f"--{prefix}{name}", value
