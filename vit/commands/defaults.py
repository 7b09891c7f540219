"""The arguments that a checkpoint brings to the command line, as defaults that typed ones overrule."""

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import vit.data
from vit.model.vision_transformer import VisionTransformer
from vit.objectives.classify.objective import ViTClassifier
from vit.objectives.complete.objective import ImageCompleter
from vit.objectives.read.objective import SequenceReader
from vit.training.base import TrainingModule
from vit.weights import read_checkpoint
from vit.weights.loading import read_model

# What train.py trains, by the name in a checkpoint; earlier checkpoints have no name.
MODULES: dict[str, type[TrainingModule]] = {
    "ViTClassifier": ViTClassifier,
    "SequenceReader": SequenceReader,
    "ImageCompleter": ImageCompleter,
}
DEFAULT_MODULE = "ViTClassifier"
# What the data decides about the model.
FROM_DATA = ("num_classes", "image_size", "in_channels", "class_names", "letters", "max_length", "mean", "std")


def arguments_of_checkpoint(path: Path, subcommand: str) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    """Return the defaults of the options, the words of the command line that name the data of ``predict``, and facts.

    The facts are what the data of the training decided about the model: the data of ``predict`` do not know them all.

    Raises:
        ValueError: If the file is no checkpoint.
    """
    if path.is_dir():  # a sharded checkpoint, which needs a config
        return {}, [], {}
    checkpoint = read_checkpoint(path)
    arguments, data = dict(checkpoint["hyper_parameters"]), checkpoint.get("data", {})
    of_data = {name: arguments.pop(name, None) for name in FROM_DATA}
    module = checkpoint.get("module", DEFAULT_MODULE)
    if module not in MODULES:
        raise ValueError(f"{path} is of a {module!r}, which this version does not have: it trains {', '.join(MODULES)}")
    _check_plain(arguments.get("attention_kwargs"), path)
    taken = [name for cls in (MODULES[module], VisionTransformer) for name in inspect.signature(cls).parameters]
    arguments = _known(arguments, {*taken})
    if subcommand != "fit" and "compile" in arguments:
        arguments["compile"] = False  # compiling takes longer than most tests and predictions
    defaults: dict[str, Any] = {"model": {"class_path": f"vit.objectives.{module}", "init_args": arguments}}
    if subcommand == "predict":
        described = {name: of_data[name] for name in ("image_size", "in_channels", "class_names", "mean", "std")}
        described["class_names"] = described["class_names"] or []  # of a reader
        described["stretch"] = of_data["letters"] is not None  # a reader must see whole texts
        described["crop_ratio"] = data.get("init_args", {}).get("crop_ratio", 1.0)
        # An argument and not a default, because it also replaces the data of a config.
        return defaults, ["--data", json.dumps({"class_path": "UnsortedImages", "init_args": described})], of_data
    name = data.get("class_path", "").removeprefix("vit.data.")
    # Only the classes of vit.data: the class path in an untrusted file must import nothing.
    if name in vit.data.__all__:
        known = _known(data.get("init_args", {}), getattr(vit.data, name).option_names())
        if name == "ImageStrings":  # other texts are read with the letters of the training
            known |= {name: of_data[name] for name in ("letters", "max_length", "image_size")}
        defaults["data"] = {"class_path": data["class_path"], "init_args": known}
    return defaults, [], {}


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
    left_out = {*FROM_DATA, "dropout", "patch_drop", "drop_path", "grad_checkpointing"}
    of_model = {name: value for name, value in arguments.items() if name not in left_out}
    of_images = {"image_size": arguments["image_size"]}
    of_images |= {name: list(trained.data[name]) for name in ("mean", "std") if trained.data.get(name)}
    return {"model": {"class_path": f"vit.objectives.{DEFAULT_MODULE}", "init_args": of_model}}, of_images


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


def _known(arguments: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Return the arguments that are taken; a checkpoint of another version may have others."""
    for name in sorted(arguments.keys() - names):
        print(f"the checkpoint was trained with {name}, which this version does not have: left out", file=sys.stderr)
    return {name: value for name, value in arguments.items() if name in names}
