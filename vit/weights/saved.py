"""Saves models as safetensors files with the arguments of their constructor inside, and reads these files."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.atomic import replacing
from vit.embedding import PatchDrop
from vit.model import VisionTransformer
from vit.weights.matching import check_same_tensors

KEY = "vit"  # of the metadata: a JSON object with "config" and "pretrained_cfg"


def save(model: VisionTransformer, path: str | Path) -> None:
    """Write a model to a safetensors file that ``vit.load`` reads, in the precision of its weights.

    The file holds the weights, ``model.config`` and, if the model has it, ``model.pretrained_cfg``. For half the size,
    save a copy in half precision: ``vit.save(copy.deepcopy(model).half(), path)``.

    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "tiny.safetensors"
    >>> save(VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=3), path)
    >>> import vit
    >>> vit.load(path).patch_embed.grid_size
    (2, 2)

    Raises:
        ValueError: If the path does not end in .safetensors, or the model has other modules than its ``config`` builds.
    """
    from safetensors.torch import save as to_bytes

    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{path} does not end in .safetensors: vit.save writes no other format")
    if type(model) is not VisionTransformer:
        raise ValueError(f"vit.save takes a VisionTransformer, and this is a {type(model).__name__}")
    _check_unchanged(model)
    try:
        description = json.dumps({"config": model.config, "pretrained_cfg": getattr(model, "pretrained_cfg", {})})
    except (TypeError, ValueError) as error:
        raise ValueError(f"config and pretrained_cfg must be numbers, texts and lists of them: {error}") from None
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
    with replacing(path) as unfinished:
        # save_file makes files that only their owner may read.
        unfinished.write_bytes(to_bytes(tensors, {KEY: description}))


def _check_unchanged(model: VisionTransformer) -> None:
    """Check that the modules of a model are those that its ``config`` builds: ``vit.load`` builds them again."""
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


def read_saved(path: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
    """Return the constructor's arguments, the weights and the ``pretrained_cfg`` in a file of ``save``.

    Raises:
        ValueError: If the file does not exist, is damaged, or was not written by ``save``.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ValueError(f"no file at {path}: vit.save writes such files")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
    except PermissionError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is no safetensors file, or is damaged ({error}): take another copy") from None
    if KEY not in metadata:
        raise ValueError(
            f"{path} does not say which model its {len(state)} tensors belong to: vit.load takes files of vit.save"
        )
    try:
        description = json.loads(metadata[KEY])
        return dict(description["config"]), state, dict(description["pretrained_cfg"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its description of the model cannot be read ({error!r})") from None
