"""How all commands name a model: a run, a checkpoint, weights of another library, or a packaged name."""

import argparse
import sys
from pathlib import Path

from vit.model.vision_transformer import VisionTransformer
from vit.runs.folders import RUNS, newest_checkpoint
from vit.support.printable import printable
from vit.weights import PACKAGED, is_name_of_timm
from vit.weights.tensor_files import is_distributed

HELP = (
    "a model: the folder of a run, a checkpoint (.ckpt), weights that vit.load reads (a file, or a folder with "
    f'config.json), "last" or "best" for the checkpoint of the newest run, {", ".join(PACKAGED)}, or "timm:NAME" for '
    "a pretrained model of timm"
)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the model of a command."""
    parser.add_argument("--checkpoint", required=True, metavar="MODEL", help=HELP)


def tell_assumed(model: VisionTransformer) -> None:
    """Print what ``vit.load`` has assumed of the weights of a model, such as the mean and deviation of its images."""
    report = getattr(model, "load_report", None)
    if report and report.assumed:
        print(f"note: assumed of {printable(report.origin)}: {'; '.join(report.assumed)}", file=sys.stderr)


def is_training_checkpoint(path: Path) -> bool:
    """Return whether a path is that of a checkpoint of a run: a .ckpt file, or the folder of a distributed one."""
    return path.suffix == ".ckpt" or is_distributed(path)


def title_of(model: str) -> str:
    """Return the name of a model on pages, given what ``find_model`` found: for a checkpoint, the folder of its run.

    >>> title_of("runs/digits/version_0/checkpoints/last.ckpt"), title_of("runs/digits/version_0/checkpoints/best.ckpt")
    ('runs/digits/version_0', 'runs/digits/version_0, best')
    >>> title_of("cifar10")
    'cifar10'
    """
    path = Path(model)
    if path.parent.name != "checkpoints":
        return model
    return f"{path.parents[1]}" if path.stem == "last" else f"{path.parents[1]}, {path.stem}"


def find_model(name: str | Path, experiment: str = "*", root: Path = Path()) -> str:
    """Return the file, the folder or the name for ``vit.load`` that a user's words stand for.

    Args:
        name: What was typed. The folder of a run stands for the checkpoint of its last step.
        experiment: The experiment whose newest run "last" and "best" mean; "*" is any.
        root: The folder that contains ``runs/``.

    Raises:
        ValueError: If nothing has this name.
    """
    if str(name) in PACKAGED or is_name_of_timm(name):
        return str(name)
    if str(name) in ("last", "best"):
        return str(newest_checkpoint(experiment, str(name), root / RUNS))
    path = Path(name)
    if path.is_dir() and (path / "checkpoints").is_dir():
        checkpoint = path / "checkpoints" / "last.ckpt"
        if not checkpoint.exists():
            raise ValueError(f"{path} is the folder of a run without a checkpoint: it was stopped before the first one")
        return str(checkpoint)
    for pattern, what in (("version_*/checkpoints", "an experiment"), ("*/version_*/checkpoints", "the folder")):
        if path.is_dir() and (runs := list(path.glob(pattern))):
            newest = max(runs, key=lambda folder: folder.stat().st_mtime).parent
            raise ValueError(f"{path} is {what} of several runs: name one of them, such as {newest}")
    if path.is_dir() and not (path / "config.json").exists() and not is_distributed(path):
        files = sorted(file.name for file in path.glob("*.ckpt"))
        remedy = f"name a file in it, such as {path / files[-1]}" if files else "name the folder of a run, or a file"
        raise ValueError(f"{path} is a folder without a model: {remedy}")
    if not path.exists():
        raise ValueError(f"no model at {name}: name {HELP.removeprefix('a model: ')}; runs are kept below {RUNS}/")
    return str(path)
