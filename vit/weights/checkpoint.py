"""Reading checkpoints: ours, written while training, and refusing what is none or would run code."""

import inspect
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.model import VisionTransformer

SHOWN_DIFFERENCES = 4


def load(path: str | Path) -> VisionTransformer:
    """A trained model in eval mode, from a checkpoint of a training run.

    Its images are expected normalised; ``model.pretrained_cfg`` holds the ``mean`` and ``std`` for that, and
    the ``class_names``, under timm's name.

    Raises:
        ValueError: If the file is no checkpoint, carries code, or does not fit the model that it describes.
    """
    checkpoint = read_checkpoint(path)
    arguments = checkpoint["hyper_parameters"]
    state = {name.removeprefix("vit."): tensor for name, tensor in checkpoint["state_dict"].items()}
    model = _build(arguments, state, path)
    model.load_state_dict(state)
    middle = [0.5] * model.patch_embed.in_channels  # what a classifier takes that is not told otherwise
    statistics = {name: arguments.get(name) or middle for name in ("mean", "std")}
    model.pretrained_cfg = {**statistics, "class_names": arguments.get("class_names")}
    return model.eval()


def _build(arguments: dict[str, Any], state: dict[str, Tensor], path: str | Path) -> VisionTransformer:
    """The model that a checkpoint describes, if it is the one whose tensors it holds."""
    names = inspect.signature(VisionTransformer).parameters
    settings = {name: value for name, value in arguments.items() if name in names}
    depth, blocks = settings.get("depth", names["depth"].default), _count_blocks(state)
    if depth != blocks:
        raise ValueError(f"{path} describes a model of depth {depth}, and holds {blocks} blocks: it is damaged")
    try:
        # Without memory first: a stranger's file may describe a model of any size.
        with torch.device("meta"):
            check_same_tensors(VisionTransformer(**settings), state, path, "it is damaged")
        return VisionTransformer(**settings)
    except (TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{path} describes a model that cannot be built: {error}") from error


def _count_blocks(state: Mapping[str, Tensor]) -> int:
    return len({name.split(".")[1] for name in state if name.startswith("blocks.")})


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The contents of a training checkpoint, on the CPU; nothing in the file is executed.

    Raises:
        ValueError: If there is no such file, it is no training checkpoint, or it carries pickled code.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no checkpoint at {path}: runs keep theirs in runs/EXPERIMENT/VERSION/checkpoints/")
    try:
        with warnings.catch_warnings(action="ignore"):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:  # an unpickler that is fed any bytes can raise anything
        if re.search("unsupported (global|class)", str(error), re.IGNORECASE):
            raise ValueError(
                f"{path} is refused: it carries pickled code, which could do anything when loaded; nothing of it "
                "was executed. Ask its author for plain tensors (a state_dict)"
            ) from None
        raise ValueError(f"{path} is not a checkpoint, or is damaged: it cannot be read as one") from None
    parts = ("state_dict", "hyper_parameters")
    if not isinstance(checkpoint, dict) or not all(isinstance(checkpoint.get(part), Mapping) for part in parts):
        raise ValueError(f"{path} is not a checkpoint of a training run: it lacks state_dict or hyper_parameters")
    strange = [name for name, value in checkpoint["state_dict"].items() if not isinstance(value, Tensor)]
    if strange:
        raise ValueError(f"{path} is not a checkpoint of a training run: {strange[0]!r} of its weights is no tensor")
    return checkpoint


def check_same_tensors(model: nn.Module, state: Mapping[str, Tensor], origin: str | Path, remedy: str) -> None:
    """Compare the tensors of a checkpoint with those that a model wants.

    Args:
        model: The model.
        state: The tensors by name.
        origin: Where they are from.
        remedy: What to do where they differ.

    Raises:
        ValueError: If names or shapes differ; the message lists the first few.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    differences = [f"{name} is missing" for name in wanted.keys() - found.keys()]
    differences += [f"{name} is not wanted" for name in found.keys() - wanted.keys()]
    differences += [
        f"{name} is {found[name]} and not {wanted[name]}"
        for name in wanted.keys() & found.keys()
        if found[name] != wanted[name]
    ]
    if differences:
        shown = "; ".join(sorted(differences)[:SHOWN_DIFFERENCES])
        rest = len(differences) - SHOWN_DIFFERENCES
        raise ValueError(
            f"{origin} comes from another architecture, {len(differences)} tensors differ: {shown}"
            f"{f'; and {rest} more' if rest > 0 else ''}: {remedy}"
        )
