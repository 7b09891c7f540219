"""Builds the model that a file describes, and fills in its weights."""

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.model import VisionTransformer
from vit.weights.checkpoint import read_checkpoint
from vit.weights.matching import check_finite, check_same_tensors
from vit.weights.saved import read_saved

PACKAGED = ("cifar10",)  # each a safetensors file and a model card beside this file


def load(path: str | Path) -> VisionTransformer:
    """Return a trained model, in eval mode.

    ``path`` is a training checkpoint (.ckpt), a file of ``vit.save`` (.safetensors), or the name "cifar10" of the model
    that comes with the package; ``./cifar10`` is a file of that name. No code in a file is executed.

    The model takes normalised images: ``model.pretrained_cfg``, which has timm's name, holds the ``mean`` and ``std``
    for this, the ``class_names``, and the ``crop_ratio`` of its data.

    >>> model = load("cifar10")
    >>> model.pretrained_cfg["class_names"][:3]
    ['airplane', 'automobile', 'bird']

    Raises:
        ValueError: If the file is neither, is damaged, carries code, or its tensors do not fit its description.
    """
    path = Path(__file__).with_name(f"{path}.safetensors") if path in PACKAGED else Path(path)
    read = read_saved if path.suffix == ".safetensors" else _read_checkpoint
    arguments, state, pretrained_cfg = read(path)
    model = _build(arguments, state, path)
    model.load_state_dict(state)
    model.pretrained_cfg = _statistics(model) | pretrained_cfg
    return model.eval()


def _statistics(model: VisionTransformer) -> dict[str, Any]:
    """Return what a file need not say about its data: the defaults of ``ViTClassifier``."""
    middle = [0.5] * model.patch_embed.in_channels
    return {"mean": middle, "std": middle, "class_names": None, "crop_ratio": 1.0}


def _read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
    """Return the constructor's arguments, the weights and the ``pretrained_cfg`` in a training checkpoint."""
    checkpoint = read_checkpoint(path)
    arguments = checkpoint["hyper_parameters"]
    state = {name.removeprefix("vit."): tensor for name, tensor in checkpoint["state_dict"].items()}
    given = {name: arguments[name] for name in ("mean", "std", "class_names") if arguments.get(name)}
    crop = {"crop_ratio": checkpoint.get("data", {}).get("init_args", {}).get("crop_ratio", 1.0)}
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
    check_finite(state, path)
    return VisionTransformer(**arguments)
