"""The arguments that trained weights bring to the command line, as defaults that typed ones overrule."""

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import vit.data
from vit.model.vision_transformer import VisionTransformer
from vit.objectives import DEFAULT, OBJECTIVES
from vit.training.base import Objective
from vit.weights import read_checkpoint
from vit.weights.loading import read_model

NOT_OF_START = ("dropout", "patch_drop", "drop_path", "grad_checkpointing")  # settings of a training, not of a model


def class_path(objective: type[Objective]) -> str:
    """Return the path by which the parser finds an objective."""
    return f"{objective.__module__}.{objective.__name__}"


def constructor_arguments(*classes: type) -> set[str]:
    """Return the names of the arguments of classes, those of their bases included."""
    bases = {base for cls in classes for base in cls.__mro__ if base.__module__.partition(".")[0] != "lightning"}
    return {name for base in bases for name in inspect.signature(base.__init__).parameters} - {"self", "args", "kwargs"}


def arguments_of_checkpoint(path: Path, subcommand: str) -> tuple[dict[str, Any], list[str]]:
    """Return the defaults of the options, and the words of the command line that name the data of ``predict``.

    Raises:
        ValueError: If the file is no checkpoint.
    """
    if path.is_dir():  # a sharded checkpoint, which needs a config
        return {}, []
    checkpoint = read_checkpoint(path)
    arguments, data = dict(checkpoint["hyper_parameters"]), checkpoint.get("data", {})
    name = checkpoint.get("module", DEFAULT.__name__)  # earlier checkpoints have no name
    if name not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise ValueError(f"{path} is of a {name!r}, which this version does not have: it trains {known}")
    objective = OBJECTIVES[name]
    _check_plain(arguments.get("attention_kwargs"), path)
    of_data = {name: arguments[name] for name in objective.from_data if name in arguments}
    if subcommand != "predict":  # whose data decides nothing about the model
        arguments = {name: value for name, value in arguments.items() if name not in of_data}
    arguments = _known(arguments, objective, *([] if objective.encoder is None else [VisionTransformer]))
    if subcommand != "fit" and "compile" in arguments:
        arguments["compile"] = False  # compiling takes longer than most tests and predictions
    defaults: dict[str, Any] = {"model": {"class_path": class_path(objective), "init_args": arguments}}
    if subcommand == "predict":
        crop_ratio = data.get("init_args", {}).get("crop_ratio", 1.0)
        return defaults, data_of_predict(objective, of_data | {"crop_ratio": crop_ratio})
    name = data.get("class_path", "").rpartition(".")[2]
    # Only the classes of vit.data: the class path in an untrusted file must import nothing.
    if name in vit.data.__all__:
        known = _known(data.get("init_args", {}), getattr(vit.data, name))
        # Other images are read as those of the training were: at one size, with the same letters.
        taken = constructor_arguments(getattr(vit.data, name)) - {"mean", "std"}
        known |= {name: value for name, value in of_data.items() if name in taken}
        defaults["data"] = {"class_path": f"vit.data.{name}", "init_args": known}
    return defaults, []


def data_of_predict(objective: type[Objective], known: dict[str, Any]) -> list[str]:
    """Return the words that name the data of ``predict``: images as the model takes them.

    They are typed words and not defaults, because they also replace the data of a config.
    """
    described = {name: known[name] for name in ("image_size", "in_channels", "crop_ratio") if name in known}
    described["stretch"] = objective.stretches_images
    return ["--data", json.dumps({"class_path": "UnsortedImages", "init_args": described})]


def arguments_of_start(path: str, told: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the defaults that trained weights bring: the architecture of their model, and how it takes images.

    Args:
        path: What ``vit.load`` reads.
        told: Arguments of the model that its tensors do not tell.

    Raises:
        ValueError: If there are no weights of a Vision Transformer.
    """
    trained = read_model(path, told)
    arguments = trained.arguments
    _check_plain(arguments.get("attention_kwargs"), Path(path))
    left_out = {*DEFAULT.from_data, *NOT_OF_START}
    of_model = {name: value for name, value in arguments.items() if name not in left_out}
    of_images = {"image_size": arguments["image_size"]}
    of_images |= {name: list(trained.data[name]) for name in ("mean", "std") if trained.data.get(name)}
    return {"model": {"class_path": class_path(DEFAULT), "init_args": of_model}}, of_images


def _check_plain(attention_kwargs: Any, path: Path) -> None:
    """Check the one argument whose values may be of any type: jsonargparse would build any class that one names.

    Raises:
        ValueError: If a value is not a number, true, false, or one word.
    """
    plain = isinstance(attention_kwargs, dict) and all(
        isinstance(name, str)
        and (
            value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and value.isidentifier())
        )
        for name, value in attention_kwargs.items()
    )
    if attention_kwargs is not None and not plain:
        raise ValueError(
            f"{path} is refused: its attention_kwargs are {str(attention_kwargs)[:80]!r}, and could name code to run; "
            "numbers and single words are taken"
        )


def _known(arguments: dict[str, Any], *classes: type) -> dict[str, Any]:
    """Return the arguments that the classes take; a checkpoint of another version may have others."""
    names = constructor_arguments(*classes)
    for name in sorted(arguments.keys() - names):
        print(f"the checkpoint was trained with {name}, which this version does not have: left out", file=sys.stderr)
    return {name: value for name, value in arguments.items() if name in names}
