"""Builds the model that a file describes, and fills in its weights."""

import inspect
import math
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.model import VisionTransformer
from vit.weights.checkpoint import read_checkpoint
from vit.weights.matching import check_numbers, check_same_tensors
from vit.weights.saved import read_saved

READER = "reader.encoder."  # the names of the encoder's weights in a checkpoint of a SequenceReader
PACKAGED = ("cifar10",)  # each a safetensors file and a model card beside this file


def load(path: str | Path) -> VisionTransformer:
    """Return a trained model, in eval mode.

    ``path`` is a training checkpoint (.ckpt), a file of ``vit.save`` (.safetensors), or the name "cifar10" of the model
    that comes with the package; ``./cifar10`` is a file of that name. Of a ``SequenceReader``, the encoder is returned.
    No code in a file is executed.

    The model takes normalised images: ``model.pretrained_cfg``, which has timm's name, holds the ``mean`` and ``std``
    for this, the ``class_names``, and the ``crop_ratio`` of its data.

    >>> model = load("cifar10")
    >>> model.pretrained_cfg["class_names"][:3]
    ['airplane', 'automobile', 'bird']

    Raises:
        ValueError: If the file is no checkpoint and no file of ``vit.save``, is damaged, carries code, or its tensors
            do not fit its description.
    """
    path = Path(__file__).with_name(f"{path}.safetensors") if path in PACKAGED else Path(path)
    read = read_saved if path.suffix == ".safetensors" else _read_checkpoint
    arguments, state, pretrained_cfg = read(path)
    model = _build(arguments, state, path)
    model.load_state_dict(state)
    model.pretrained_cfg = _described_data(model, pretrained_cfg, path)
    return model.eval()


def _described_data(model: VisionTransformer, given: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return what a file says about its data, after a check; what it does not say is the default of ``ViTClassifier``.

    Raises:
        ValueError: If it does not describe images and classes of the model.
    """
    channels = model.patch_embed.in_channels
    middle = [0.5] * channels
    data = {"mean": middle, "std": middle, "class_names": None, "crop_ratio": 1.0} | given
    names, crop = data["class_names"], data["crop_ratio"]
    right = {
        "mean": _are_numbers(data["mean"], channels),
        "std": _are_numbers(data["std"], channels) and min(data["std"]) > 0,
        "class_names": names is None or _are_names(names, model.num_classes),
        "crop_ratio": _are_numbers([crop], 1) and 0.1 <= crop <= 1,
    }
    wrong = [name for name, is_right in right.items() if not is_right]
    if wrong:
        shown = repr(data[wrong[0]])[:80]
        raise ValueError(
            f"{path} is damaged: {wrong[0]} ({shown}) does not fit a model of {channels} channels and "
            f"{model.num_classes} classes"
        )
    return data


def _are_numbers(values: Any, count: int) -> bool:
    return (
        isinstance(values, list | tuple)
        and len(values) == count
        and all(isinstance(value, Real) and math.isfinite(value) for value in values)
    )


def _are_names(values: Any, count: int) -> bool:
    return (
        isinstance(values, list | tuple)
        and len(values) == count
        and all(isinstance(value, str) and value.isprintable() for value in values)
    )


def _read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
    """Return the constructor's arguments, the weights and the ``pretrained_cfg`` in a training checkpoint."""
    checkpoint = read_checkpoint(path)
    if checkpoint.get("module") == "ImageCompleter":
        raise ValueError(
            f"{path} holds an ImageCompleter, which has no Vision Transformer: load it by the class itself"
        )
    arguments = checkpoint["hyper_parameters"]
    state = {name.removeprefix("vit."): tensor for name, tensor in checkpoint["state_dict"].items()}
    if any(name.startswith(READER) for name in state):
        state = {name.removeprefix(READER): tensor for name, tensor in state.items() if name.startswith(READER)}
        arguments = {**arguments, "num_classes": 0}
    given = {name: arguments[name] for name in ("mean", "std", "class_names") if arguments.get(name) is not None}
    of_data = checkpoint.get("data")
    of_data = of_data.get("init_args") if isinstance(of_data, dict) else None
    crop = {"crop_ratio": of_data["crop_ratio"]} if isinstance(of_data, dict) and "crop_ratio" in of_data else {}
    names = inspect.signature(VisionTransformer).parameters
    return {name: value for name, value in arguments.items() if name in names}, state, given | crop


def _build(arguments: dict[str, Any], state: dict[str, Tensor], path: Path) -> VisionTransformer:
    """Build the model that a file describes, after a check that its tensors fit."""
    default = inspect.signature(VisionTransformer).parameters["depth"].default
    depth = arguments.get("depth", default)
    blocks = len({name.split(".")[1] for name in state if name.startswith("blocks.")})
    if depth != blocks:
        raise ValueError(f"{path} describes a model of depth {depth}, and holds {blocks} blocks: it is damaged")
    try:
        # On the meta device first: an untrusted file may describe a model of any size.
        with torch.device("meta"):
            described = VisionTransformer(**arguments)
    except (TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{path} describes a model that cannot be built: {error}") from error
    check_same_tensors(described, state, path, "it is damaged")
    check_numbers(state, path)
    return VisionTransformer(**arguments)
