"""Typed arguments, read before the parser is built: the model that they ask for, and configs that cannot be read."""

import argparse
from pathlib import Path
from typing import Any

import yaml

from vit.commands.defaults import DEFAULT_MODULE, FROM_DATA
from vit.weights.loading import TOLD_BY_CALLER

SET_BY_DATA = ("image_size", "letters", "max_length", "mean", "std")  # arguments of some data sets


def asked_module(arguments: Any) -> str:
    """Return the name of the model that typed arguments or their configs ask for, ``ViTClassifier`` if none does.

    >>> asked_module(["fit", "--model=SequenceReader", "--model.depth", "3"]), asked_module(["fit"])
    ('SequenceReader', 'ViTClassifier')
    """
    if isinstance(arguments, list):
        scan = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        scan.add_argument("--model")
        scan.add_argument("-c", "--config", action="append", default=[])
        found, _ = scan.parse_known_args([str(word) for word in arguments])
        models = [*(check_config(Path(config)).get("model") for config in found.config), found.model]
    else:
        models = [(arguments or {}).get("model")]
    paths = [model.get("class_path") if isinstance(model, dict) else model for model in models]
    path = next((path for path in reversed(paths) if path), DEFAULT_MODULE)
    return path.rpartition(".")[2]


def asked_start(arguments: list[str]) -> tuple[str | None, dict[str, Any]]:
    """Return the file of ``--model.init_from`` in typed arguments or their configs, and what they tell about it.

    >>> asked_start(["fit", "--model.init_from", "vit.pth", "--model.num_heads=3"])
    ('vit.pth', {'num_heads': 3})
    """
    names = ("init_from", *TOLD_BY_CALLER)
    scan = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    scan.add_argument("-c", "--config", action="append", default=[])
    for name in names:
        scan.add_argument(f"--model.{name}", dest=name)
    found, _ = scan.parse_known_args(arguments)
    asked: dict[str, Any] = {}
    for config in found.config:
        model = check_config(Path(config)).get("model")
        model = model.get("init_args", model) if isinstance(model, dict) else {}
        asked |= {name: model[name] for name in names if name in model}
    typed = {name: yaml.safe_load(vars(found)[name]) for name in names if vars(found)[name] is not None}
    asked |= typed
    if "norm_eps" in asked:
        asked["norm_eps"] = float(asked["norm_eps"])  # YAML reads 1e-5 as text
    return asked.pop("init_from", None), asked


def check_config(path: Path) -> dict[str, Any]:
    """Return the arguments of a config, after a check that it is YAML with arguments by name.

    Raises:
        ValueError: If it is not.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"cannot read the config {path}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ValueError(f"the config {path} has no arguments by name, such as model: or data:; see configs/")
    return content


def check_not_of_data(arguments: list[str]) -> None:
    """Check that no typed argument sets what the data decides about the model.

    Raises:
        ValueError: If one does.
    """
    for name in FROM_DATA:
        if any(word.split("=")[0] == f"--model.{name}" for word in arguments):
            remedy = f"set --data.{name}, or leave it out" if name in SET_BY_DATA else "leave it out"
            raise ValueError(f"--model.{name} is that of the data: {remedy}")
