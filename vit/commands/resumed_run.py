"""The run that a training continues: its config, and what of the command line must be as it was."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vit.commands.configs import read_config
from vit.commands.defaults import TrainedDefaults
from vit.commands.typed_arguments import PLACES
from vit.data.shards import check_no_command
from vit.runs.folders import run_folder_of


def config_of_run(trained: TrainedDefaults, is_needed: bool) -> Path | None:
    """Return the config of the run to continue: its checkpoint lacks length, seed and precision of the training.

    Raises:
        ValueError: If it is needed, and not there.
    """
    run_folder = run_folder_of(trained.path)
    if run_folder is not None and (run_folder / "config.yaml").exists():
        return run_folder / "config.yaml"
    if is_needed:
        raise ValueError(
            f"{trained.path} has lost the config.yaml of its run: the length of the training, its seed and its "
            "precision are unknown; name its config by --config FILE"
        )
    return None


def check_same_seed(trained: TrainedDefaults, seed: int) -> None:
    """Check that the run that ``--ckpt_path auto`` has found has the same seed.

    Raises:
        ValueError: If it has another one.
    """
    path = config_of_run(trained, is_needed=False)
    config = {} if path is None else read_config(path)
    if config.get("seed_everything", seed) != seed:
        raise ValueError(
            f"the newest run, {run_folder_of(trained.path)}, has seed_everything {config['seed_everything']}, and this "
            f"one {seed}: give each seed an --experiment, or name the checkpoint"
        )


def check_runs_no_command(trained: TrainedDefaults, typed: Sequence[str], data: Mapping[str, Any]) -> None:
    """Check that the config of the run to continue, which may come from a stranger, names its data by no command.

    Raises:
        ValueError: If it does, and the same command was not typed.
    """
    for part in (data.get(name) or {} for name in ("init_args", "dict_kwargs")):
        read = {name: part[name] for name in PLACES if name in part}
        not_typed = {name: value for name, value in read.items() if not any(str(value) in word for word in typed)}
        check_no_command(not_typed, f"the config of {run_folder_of(trained.path)}")
