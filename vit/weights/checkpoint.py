"""Reads training checkpoints; refuses other files, and files that carry code."""

import inspect
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.model import VisionTransformer

SHOWN_DIFFERENCES = 4


def load(path: str | Path) -> VisionTransformer:
    """Return the model of a training checkpoint, in eval mode.

    The model takes normalised images: ``model.pretrained_cfg``, which has timm's name, holds the ``mean`` and ``std``
    for this, the ``class_names``, and the ``crop_ratio`` of its data.

    Raises:
        ValueError: If the file is not a checkpoint, carries code, or its tensors do not fit its hyper-parameters.
    """
    checkpoint = read_checkpoint(path)
    arguments = checkpoint["hyper_parameters"]
    state = {name.removeprefix("vit."): tensor for name, tensor in checkpoint["state_dict"].items()}
    model = _build(arguments, state, path)
    model.load_state_dict(state)
    middle = [0.5] * model.patch_embed.in_channels  # the default of ViTClassifier
    statistics = {name: arguments.get(name) or middle for name in ("mean", "std")}
    crop_ratio = checkpoint.get("data", {}).get("init_args", {}).get("crop_ratio", 1.0)
    model.pretrained_cfg = {**statistics, "class_names": arguments.get("class_names"), "crop_ratio": crop_ratio}
    return model.eval()


def _build(arguments: dict[str, Any], state: dict[str, Tensor], path: str | Path) -> VisionTransformer:
    """Build the model that a checkpoint describes, after a check that its tensors fit."""
    names = inspect.signature(VisionTransformer).parameters
    settings = {name: value for name, value in arguments.items() if name in names}
    depth = settings.get("depth", names["depth"].default)
    blocks = len({name.split(".")[1] for name in state if name.startswith("blocks.")})
    if depth != blocks:
        raise ValueError(f"{path} describes a model of depth {depth}, and holds {blocks} blocks: it is damaged")
    try:
        # On the meta device first: an untrusted file may describe a model of any size.
        with torch.device("meta"):
            described = VisionTransformer(**settings)
    except (TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{path} describes a model that cannot be built: {error}") from error
    check_same_tensors(described, state, path, "it is damaged")
    return VisionTransformer(**settings)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return the contents of a training checkpoint, on the CPU; code in the file is not executed.

    Raises:
        ValueError: If the file does not exist, is damaged, is not a training checkpoint, or carries pickled code.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no checkpoint at {path}: runs keep theirs in runs/EXPERIMENT/VERSION/checkpoints/")
    _check_intact(path)
    try:
        with warnings.catch_warnings(action="ignore"):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:  # an unpickler can raise any error on arbitrary bytes
        if re.search("unsupported (global|class)", str(error), re.IGNORECASE):
            raise ValueError(
                f"{path} is refused: it carries pickled code, which could do anything when loaded; none of it was "
                "executed. Ask its author for plain tensors (a state_dict)"
            ) from None
        raise ValueError(f"{path} is not a checkpoint, or is damaged: it cannot be read as one") from None
    parts = ("state_dict", "hyper_parameters")
    if not isinstance(checkpoint, dict) or not all(isinstance(checkpoint.get(part), Mapping) for part in parts):
        raise ValueError(f"{path} is not a checkpoint of a training run: it lacks state_dict or hyper_parameters")
    strange = [name for name, value in checkpoint["state_dict"].items() if not isinstance(value, Tensor)]
    if strange:
        raise ValueError(f"{path} is not a checkpoint of a training run: {strange[0]!r} of its weights is not a tensor")
    return checkpoint


def _check_intact(path: Path) -> None:
    """Compare each part of a zip archive with its checksum, which torch writes and does not read."""
    try:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            # Of what the checksums leave out, torch obeys the attributes: it reads no data of a "directory".
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


def check_same_tensors(model: nn.Module, state: Mapping[str, Tensor], origin: str | Path, remedy: str) -> None:
    """Check that a checkpoint has the tensors of a model.

    Raises:
        ValueError: If names or shapes differ; the message names the ``origin``, the first few, and the ``remedy``.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    differences = [f"{name} is missing" for name in expected.keys() - found.keys()]
    differences += [f"{name} is unknown" for name in found.keys() - expected.keys()]
    differences += [
        f"{name} is {found[name]} and not {expected[name]}"
        for name in expected.keys() & found.keys()
        if found[name] != expected[name]
    ]
    if differences:
        shown = "; ".join(sorted(differences)[:SHOWN_DIFFERENCES])
        rest = len(differences) - SHOWN_DIFFERENCES
        raise ValueError(
            f"{origin} comes from another architecture, {len(differences)} tensors differ: {shown}"
            f"{f'; and {rest} more' if rest > 0 else ''}: {remedy}"
        )
