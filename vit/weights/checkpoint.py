"""Reads pickled files of tensors, and training checkpoints; refuses files that carry code, and damaged ones."""

import argparse
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# What the trained net was called before it was ``network``, its Vision Transformer now, and arguments that it sets.
FORMER_NAMES: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "ViTClassifier": ("vit.", "network.", {}),
    "SequenceReader": ("reader.", "network.encoder.", {"num_classes": 0, "fc_norm": False}),
    "ImageCompleter": ("model.", None, {}),
}


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return the contents of a training checkpoint, on the CPU; code in the file is not executed.

    Raises:
        ValueError: If the file does not exist, is damaged, is not a training checkpoint, or carries pickled code.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no checkpoint at {path}: runs keep theirs in runs/EXPERIMENT/VERSION/checkpoints/")
    checkpoint = load_tensors(path)
    parts = ("state_dict", "hyper_parameters")
    if not isinstance(checkpoint, dict) or not all(isinstance(checkpoint.get(part), Mapping) for part in parts):
        raise ValueError(f"{path} is not a checkpoint of a training run: it lacks state_dict or hyper_parameters")
    for name, value in checkpoint["state_dict"].items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ValueError(f"{path} is not a checkpoint of a training run: {name!r} of its weights is not a tensor")
        if not is_whole(value):
            raise ValueError(f"{path} is damaged: {name} has {tuple(value.shape)} numbers, and the file holds fewer")
    return upgrade(checkpoint)


def upgrade(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Give a checkpoint of an earlier version today's names, and say where its Vision Transformer is.

    The trained net was ``vit`` in a classifier, ``reader`` in a reader and ``model`` in a completer; it is ``network``
    now. ``encoder`` has the prefix of the weights of the Vision Transformer and its arguments, None if there is none.
    """
    if "encoder" in checkpoint:
        return checkpoint
    kind = checkpoint.get("module", "ViTClassifier")  # the earliest ones have no name
    if kind not in FORMER_NAMES:
        return checkpoint
    former, prefix, fixed = FORMER_NAMES[kind]
    if checkpoint["hyper_parameters"].get("positions") == "rotary":
        checkpoint["hyper_parameters"]["positions"] = "rope"
    for part in ("state_dict", "training_weights"):
        if part in checkpoint:
            checkpoint[part] = {
                f"network.{name.removeprefix(former)}" if name.startswith(former) else name: tensor
                for name, tensor in checkpoint[part].items()
            }
    checkpoint["encoder"] = None
    if prefix is not None:
        checkpoint["encoder"] = {"prefix": prefix, "arguments": {**checkpoint["hyper_parameters"], **fixed}}
    return checkpoint


def load_tensors(path: Path) -> Any:
    """Return the contents of a file of ``torch.save``, on the CPU; code in the file is not executed.

    Raises:
        ValueError: If the file is damaged or carries pickled code.
    """
    if _is_torchscript(path):
        raise ValueError(
            f"{path} is a TorchScript program: save the tensors of torch.jit.load(path).state_dict(), if you trust it"
        )
    _check_intact(path)
    try:
        # Files of timm and DINO keep the options of their training.
        with warnings.catch_warnings(action="ignore"), torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:  # an unpickler can raise any error on arbitrary bytes
        if re.search("unsupported (global|class)", str(error), re.IGNORECASE):
            raise ValueError(
                f"{path} is refused: it carries pickled code, which could do anything when loaded; none of it was "
                "executed. Ask its author for plain tensors (a state_dict)"
            ) from None
        raise ValueError(f"{path} is not a checkpoint, or is damaged: it cannot be read as one") from None


def is_whole(tensor: Tensor) -> bool:
    """Return whether a tensor is an array with a place in memory for each number, and no view that repeats some."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return False
    return tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()


def _is_torchscript(path: Path) -> bool:
    """Return whether a file is a program of ``torch.jit.save``, as OpenAI's files of CLIP are."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except Exception:  # no zip archive, or a damaged one; zipfile can raise any error
        return False


def _check_intact(path: Path) -> None:
    """Compare each part of a zip archive with its checksum, which torch writes and does not read."""
    try:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            # The checksums do not cover the attributes, and torch reads no data of an entry marked as a directory.
            marked = (part.filename for part in archive.infolist() if part.external_attr)
            damaged = archive.testzip() or next(marked, None)
    except PermissionError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:  # zipfile can raise any error on damaged bytes
        raise ValueError(f"{path} is damaged ({error}): take another checkpoint, or a copy of it") from None
    if damaged is not None:
        raise ValueError(
            f"{path} is damaged ({damaged} is not what was written): take another checkpoint, or a copy of it"
        )
