"""Reads training checkpoints, and gives those of earlier versions today's names."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vit.weights.architecture import DEFAULTS
from vit.weights.formats.format import Arguments, State
from vit.weights.tensor_files import is_distributed, is_whole, read_file


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return the contents of a training checkpoint, on the CPU, without executing code in the file.

    Raises:
        ValueError: If the file does not exist, is damaged, is not a training checkpoint, or carries pickled code.
    """
    return check_checkpoint(read_file(Path(path))[0], Path(path))


def describe_checkpoint(path: Path) -> dict[str, Any]:
    """Return what a training checkpoint holds, without the tensors of a distributed one, which may exceed the memory.

    Raises:
        ValueError: As ``read_checkpoint`` does.
    """
    if not is_distributed(path):
        return read_checkpoint(path)
    from vit.weights.distributed import read_description  # imported here, as it needs more of torch

    return check_checkpoint({"state_dict": {}} | read_description(path), path)


def check_checkpoint(contents: Any, path: Path) -> dict[str, Any]:
    """Return the contents of a training checkpoint under today's names, after a check."""
    parts = ("state_dict", "hyper_parameters")
    if not isinstance(contents, dict) or not all(isinstance(contents.get(part), Mapping) for part in parts):
        raise ValueError(f"{path} is not a checkpoint of a training run: it lacks state_dict or hyper_parameters")
    for name, value in contents["state_dict"].items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ValueError(f"{path} is not a checkpoint of a training run: {name!r} of its weights is not a tensor")
        if not is_whole(value):
            raise ValueError(f"{path} is damaged: {name} has {tuple(value.shape)} numbers, and the file holds fewer")
    return upgrade(contents)


def is_ours(contents: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is of this package: other trainings with Lightning have hyper-parameters as well."""
    if isinstance(contents.get("module"), str):  # the class that was trained; the earliest checkpoints lack it
        return True
    encoder, arguments, state = (contents.get(name) for name in ("encoder", "hyper_parameters", "state_dict"))
    if isinstance(encoder, Mapping) and {"prefix", "arguments"} <= encoder.keys():
        return True
    names = state if isinstance(state, Mapping) else ()
    is_named = any(str(name).startswith(("vit.", "blocks.", "reader.encoder.")) for name in names)
    return is_named and isinstance(arguments, Mapping) and {"num_heads", "embed_dim"} <= arguments.keys()


def upgrade(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Give a checkpoint of an earlier version today's form, in place, and return it.

    The trained net is called ``network``; earlier it was ``vit`` in a classifier, ``reader`` in a reader and ``model``
    in a completer. ``encoder`` holds the prefix of the Vision Transformer's weights and its arguments; it is None if
    the net has no Vision Transformer.
    """
    if "encoder" in checkpoint or not is_ours(checkpoint):
        return checkpoint
    module, parts = checkpoint.get("module"), {name.partition(".")[0] for name in checkpoint["state_dict"]}
    former, prefix, fixed = "vit.", "network.", {}
    if module == "ImageCompleter":
        former, prefix = "model.", None
    elif module == "SequenceReader" or "reader" in parts:
        former, prefix, fixed = "reader.", "network.encoder.", {"num_classes": 0, "fc_norm": False}
    elif "blocks" in parts:
        prefix = ""  # the names of a Vision Transformer
    known = checkpoint["hyper_parameters"]
    if known.get("positions") == "rotary":
        known["positions"] = "rope"
    for part in (part for part in ("state_dict", "training_weights") if isinstance(checkpoint.get(part), Mapping)):
        checkpoint[part] = {
            f"network.{name.removeprefix(former)}" if str(name).startswith(former) else name: tensor
            for name, tensor in checkpoint[part].items()
        }
    arguments = DEFAULTS | {name: known[name] for name in DEFAULTS if name in known} | fixed
    checkpoint["encoder"] = None if prefix is None else {"prefix": prefix, "arguments": arguments}
    return checkpoint


def read_encoder(checkpoint: Mapping[str, Any], path: Path) -> tuple[Arguments, State, dict[str, Any]]:
    """Return arguments, weights and data of the Vision Transformer in a training checkpoint.

    The data are those in ``pretrained_cfg``, as far as the checkpoint has them.
    """
    encoder = checkpoint.get("encoder")
    prefix, arguments, about = (
        encoder.get(name) if isinstance(encoder, Mapping) else None for name in ("prefix", "arguments", "about")
    )
    if not isinstance(prefix, str) or not isinstance(arguments, Mapping):
        raise ValueError(f"{path} is damaged: its encoder needs a prefix and arguments, and is {str(encoder)[:80]!r}")
    try:
        json.dumps(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: arguments are numbers, strings and lists of them: {error}") from None
    tensors = checkpoint["state_dict"].items()
    state = {name.removeprefix(prefix): tensor for name, tensor in tensors if name.startswith(prefix)}
    known, of_data = checkpoint["hyper_parameters"], checkpoint.get("data")
    names = ("mean", "std") if arguments.get("num_classes") == 0 else ("mean", "std", "class_names")
    data = {name: known[name] for name in names if known.get(name) is not None}
    init_args = of_data.get("init_args") if isinstance(of_data, Mapping) else None
    if checkpoint.get("module") == "SequenceReader":  # whose earlier checkpoints do not say it
        about = {"stretch": True} | (about if isinstance(about, Mapping) else {})
    for name, place in (("crop_ratio", init_args), ("thresholds", about), ("stretch", about)):
        value = place.get(name) if isinstance(place, Mapping) else None
        data |= {} if value is None else {name: value}
    return dict(arguments), state, data


def read_blocks(checkpoint: Mapping[str, Any], path: Path) -> tuple[Arguments, State]:
    """Return the blocks of an ``ImageCompleter``, which embeds colours instead of patches, and their arguments.

    Raises:
        ValueError: If the checkpoint holds no such blocks.
    """
    module, known, prefix = checkpoint.get("module"), checkpoint["hyper_parameters"], "network.decoder."
    tensors = {name.removeprefix(prefix): tensor for name, tensor in checkpoint["state_dict"].items()}
    state = {name: tensor for name, tensor in tensors.items() if name.startswith(("blocks.", "norm."))}
    arguments = {name: known[name] for name in ("embed_dim", "depth", "num_heads", "mlp_ratio") if name in known}
    if module != "ImageCompleter" or not state or len(arguments) < 4:
        named = isinstance(module, str) and module.isidentifier()
        raise ValueError(f"{path} holds no Vision Transformer" + f": {module}.load_from_checkpoint reads it" * named)
    return arguments, state
