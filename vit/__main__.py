"""All commands under one name: ``vit-attention NAME``, or ``python -m vit NAME``."""

import importlib
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import NamedTuple, NoReturn

from vit.support.checks import nearest_hint
from vit.support.interrupts import starting
from vit.version import __version__

PROGRAM = "vit-attention"  # the installed command, and the distribution


class Command(NamedTuple):
    """Where a command is, and what it does."""

    place: str  # module:function
    extra: str | None  # the extra that installs what the command imports beyond torch; None if torch is enough
    does: str
    example: str


TRAINING = "vit.commands.fit:main"
COMMANDS = {
    "fit": Command(TRAINING, "train", "train a model", "fit --config digits"),
    "validate": Command(TRAINING, "train", "measure a checkpoint on validation images", "validate --ckpt_path best"),
    "test": Command(TRAINING, "train", "measure a checkpoint on test images", "test --ckpt_path last"),
    "predict": Command(
        TRAINING, "train", "classify the images in a folder", "predict --ckpt_path last --data.root photos"
    ),
    "folds": Command(
        "vit.commands.folds:main",
        "train",
        "train for each fold of cross-validation, and for several seeds",
        "folds --config photos --data.root photos --folds 5",
    ),
    "shards": Command(
        "vit.commands.shards:main", "train", "write a folder of images as tar shards", "shards photos photo_shards"
    ),
    "plan": Command(
        "vit.commands.plan:main",
        "train",
        "compute what a training will take",
        "plan --config cifar10_gpu --devices 8 --memory 80 --peak 990e12",
    ),
    "explain": Command(
        "vit.commands.explain:main", "explain", "draw what a prediction rests on", "explain photo.jpg --html"
    ),
    "analysis": Command(
        "vit.commands.analysis:main", "explain", "measure what the heads do", "analysis --checkpoint best.ckpt"
    ),
    "weights": Command(
        "vit.commands.weights:main", None, "show or convert a file of weights", "weights show model.safetensors"
    ),
    "evaluate": Command(
        "vit.commands.evaluate:main",
        "explain",
        "evaluate frozen features by a simple classifier",
        "evaluate knn --checkpoint cifar10 --data.root photos",
    ),
    "features": Command(
        "vit.commands.features:main",
        "explain",
        "write the features of the images in a folder",
        "features photos --checkpoint cifar10 -o features.safetensors",
    ),
    "export": Command(
        "vit.commands.export:main",
        "export",
        "write a model as a program without this package",
        "export cifar10 model.onnx",
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the first argument names; exit with status 2 if there is no such command."""
    with starting():
        _run(list(sys.argv[1:] if arguments is None else arguments))


def _run(typed: list[str]) -> None:
    if typed[:1] == ["--version"]:
        show_version()
    if not typed or typed[0] in ("-h", "--help"):
        print(overview())
        raise SystemExit(0 if typed else 2)
    name, *others = typed
    if name not in COMMANDS:
        _end(f"no command {name!r}{nearest_hint(name, COMMANDS)}: choose one of {', '.join(COMMANDS)}")
    command = COMMANDS[name]
    module, function = command.place.split(":")
    try:
        getattr(importlib.import_module(module), function)(typed if command.place == TRAINING else others)
    except ModuleNotFoundError as error:
        if command.extra is None or error.name is None or error.name.split(".")[0] == "vit":
            raise
        _end(f"{name} needs {error.name}, which is not installed: pip install '{PROGRAM}[{command.extra}]'")


def show_version() -> NoReturn:
    """Print the versions of the package, of Python and of torch, and exit."""
    print(f"{PROGRAM} {__version__} (Python {platform.python_version()}, torch {version('torch')})")
    raise SystemExit(0)


def _end(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


def overview() -> str:
    """Return a list of the commands: what each does, and an example."""
    rows = [f"  {name:10}{command.does}\n            {PROGRAM} {command.example}" for name, command in COMMANDS.items()]
    return "\n".join([f"{PROGRAM} NAME ...; {PROGRAM} NAME --help lists the options of a command.\n", *rows])


if __name__ == "__main__":
    main()
