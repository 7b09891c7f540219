"""All commands under one name: ``vit NAME``, or ``python -m vit NAME``."""

import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple


class Command(NamedTuple):
    """Where a command is, and what it does."""

    place: str  # module:function
    does: str
    example: str


TRAINING = "vit.commands.fit:main"
COMMANDS = {
    "fit": Command(TRAINING, "train a model", "vit fit --config configs/cifar10_quick.yaml"),
    "validate": Command(TRAINING, "measure a checkpoint on validation images", "vit validate --ckpt_path best"),
    "test": Command(TRAINING, "measure a checkpoint on test images", "vit test --ckpt_path last"),
    "predict": Command(TRAINING, "classify the images in a folder", "vit predict --ckpt_path last --data.root photos"),
    "explain": Command("vit.commands.explain:main", "draw what a prediction rests on", "vit explain photo.jpg --html"),
    "analysis": Command(
        "vit.commands.analysis:main", "measure what the heads do", "vit analysis --checkpoint best.ckpt"
    ),
    "weights": Command(
        "vit.commands.weights:main", "show or convert a file of weights", "vit weights show model.safetensors"
    ),
    "evaluate": Command(
        "vit.commands.evaluate:main",
        "evaluate frozen features by a simple classifier",
        "vit evaluate knn --checkpoint cifar10 --data.root photos",
    ),
    "features": Command(
        "vit.commands.features:main",
        "write the features of the images in a folder",
        "vit features photos --checkpoint cifar10 -o features.safetensors",
    ),
    "export": Command(
        "vit.commands.export:main", "write a model as a program without this package", "vit export cifar10 model.onnx"
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that is named first; exit with status 2 if there is none of that name."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    if not typed or typed[0] in ("-h", "--help"):
        print(overview())
        raise SystemExit(0 if typed else 2)
    name, *others = typed
    if name not in COMMANDS:
        print(f"error: no command {name!r}: choose one of {', '.join(COMMANDS)}", file=sys.stderr)
        raise SystemExit(2)
    module, function = COMMANDS[name].place.split(":")
    is_training = COMMANDS[name].place == TRAINING
    getattr(importlib.import_module(module), function)(typed if is_training else others)


def overview() -> str:
    """Return the commands with what they do and an example each."""
    rows = [f"  {name:10}{command.does}\n            {command.example}" for name, command in COMMANDS.items()]
    return "\n".join(["vit NAME ...; vit NAME --help lists the options of a command.\n", *rows])


if __name__ == "__main__":
    main()
