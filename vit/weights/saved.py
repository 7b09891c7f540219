"""Files of this package: safetensors with the arguments of the constructor inside."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.model.layers import PatchDrop
from vit.model.vision_transformer import VisionTransformer
from vit.support.files import replacing
from vit.weights.matching import check_same_tensors
from vit.weights.sources import read_metadata, read_safetensors

KEY = "vit"  # of the metadata: a JSON object with "config" and "pretrained_cfg"


def save_described(model: VisionTransformer, path: Path) -> None:
    """Write the weights of a model, its ``config`` and its ``pretrained_cfg`` to a safetensors file.

    Raises:
        ValueError: If the path does not end in .safetensors, or the config is no JSON.
    """
    if path.suffix != ".safetensors":
        raise ValueError(f"{path} does not end in .safetensors, as files of format 'vit' do")
    try:
        description = json.dumps({"config": model.config, "pretrained_cfg": getattr(model, "pretrained_cfg", {})})
    except (TypeError, ValueError) as error:
        raise ValueError(f"config and pretrained_cfg must be numbers, texts and lists of them: {error}") from None
    write_safetensors(model.state_dict(), path, {KEY: description})


def write_safetensors(state: Mapping[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write tensors to a safetensors file, which appears as a whole or not at all."""
    from safetensors.torch import save as to_bytes

    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}
    with replacing(path) as unfinished:
        # save_file makes files that only their owner may read.
        unfinished.write_bytes(to_bytes(tensors, metadata))


def check_unchanged(model: VisionTransformer) -> None:
    """Check that the modules of a model are those that its ``config`` builds: ``vit.load`` builds them again.

    Raises:
        ValueError: If they are not.
    """
    if type(model) is not VisionTransformer:
        raise ValueError(f"vit.save takes a VisionTransformer, and this is a {type(model).__name__}")
    with torch.device("meta"):
        described = VisionTransformer(**model.config)
    modules, expected = _printed(model), _printed(described)
    changed = next((name for name in modules.keys() | expected.keys() if modules.get(name) != expected.get(name)), None)
    if changed is not None:
        raise ValueError(f"{changed} is not as model.config describes it: vit.save takes a model with its own modules")
    check_same_tensors(described, model.state_dict(), "the model", "vit.save takes a model with its own weights")


def _printed(model: nn.Module) -> dict[str, str]:
    """Return type and settings of each module, by its name."""
    modules = dict(model.named_modules(remove_duplicate=False))
    # The training changes the rate of PatchDrop.
    settings = {name: "" if isinstance(module, PatchDrop) else module.extra_repr() for name, module in modules.items()}
    return {name: f"{type(module)} {settings[name]}" for name, module in modules.items()}


def is_described(path: Path) -> bool:
    """Return whether a safetensors file is one of this package.

    Raises:
        ValueError: If it cannot be read, or is damaged.
    """
    return KEY in read_metadata(path)


def read_saved(path: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
    """Return the constructor's arguments, the weights and the ``pretrained_cfg`` in a file of ``save``.

    Raises:
        ValueError: If the file does not exist, is damaged, or was not written by ``save``.
    """
    if not path.is_file():
        raise ValueError(f"no file at {path}: vit.save writes such files")
    state, metadata = read_safetensors(path), read_metadata(path)
    try:
        description = json.loads(metadata[KEY])
        return dict(description["config"]), state, dict(description["pretrained_cfg"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its description of the model cannot be read ({error!r})") from None
