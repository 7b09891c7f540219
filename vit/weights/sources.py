"""Reads tensors, and what stands beside them, from a file, a folder, a state dict or a live module.

Nothing in a file is executed.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.model.presets import PRESETS
from vit.weights.checkpoint import is_whole, load_tensors
from vit.weights.formats import Arguments, State
from vit.weights.formats.transformers_config import arguments_in

# Where files of other libraries keep their tensors, the first that is there: DINO's teacher, averaged weights, weights.
INSIDE = ("teacher", "model_ema", "state_dict_ema", "state_dict", "model", "module")
WEIGHTS = ("model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin")
# Names of timm's architectures whose parts the backbone lacks, such as rotary positions beside learned ones.
OTHER_KINDS = re.compile("rope|eva|beit")
# Those with the approximate GELU, which no file of theirs tells.
GELU_TANH = re.compile(r"vit_(base_patch32|large_patch16(?=_siglip(_gap)?_512)|(so400m|giantopt)_patch16)_siglip")
POOLS = {"token": "cls", "avg": "mean", "map": "map"}  # timm's names
SUFFIXES = (".safetensors", ".npz", ".bin", ".pth", ".pt", ".ckpt", ".tar")


@dataclass(frozen=True)
class Source:
    """Tensors of a model, and what else is known of it.

    Attributes:
        state: The tensors under their names there.
        origin: Where they come from, in words.
        stated: Arguments of ``VisionTransformer`` that something beside the tensors tells.
        data: ``mean``, ``std``, ``class_names`` and so on, as far as they are known.
    """

    state: State
    origin: str
    stated: Arguments = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


def read_source(source: str | Path | Mapping[str, Tensor] | nn.Module) -> Source:
    """Return the tensors of a file, a folder with config.json, a state dict, or a module of another library.

    Raises:
        ValueError: If a file cannot be read, is of a kind that is not known, or holds something else than tensors.
    """
    if isinstance(source, nn.Module):
        return _of_module(source)
    if isinstance(source, Mapping):
        return Source(tensors_of(dict(source), "the state dict"), "the state dict")
    path = Path(source)
    return _of_folder(path) if path.is_dir() else Source(_read_file(path), str(path))


def _read_file(path: Path) -> State:
    if not path.is_file():
        raise ValueError(f"no file at {path}: download the weights first, and name their file or folder")
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} ends in {path.suffix!r}, and weights end in one of {', '.join(SUFFIXES)}")
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    return tensors_of(load_tensors(path), str(path))


def read_safetensors(path: Path) -> State:
    """Return the tensors of a safetensors file.

    Raises:
        ValueError: If it cannot be read, or is damaged.
    """
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)


def read_metadata(path: Path) -> dict[str, str]:
    """Return the texts beside the tensors of a safetensors file.

    Raises:
        ValueError: If it cannot be read, or is damaged.
    """
    with _opened(path) as file:
        return file.metadata() or {}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except PermissionError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is no safetensors file, or is damaged ({error}): take another copy") from None


def _read_npz(path: Path) -> State:
    """Return the arrays of an .npz file, of which bfloat16 ones have no type of numpy."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # numpy and zipfile can raise any error on damaged bytes
        raise ValueError(f"{path} is no .npz file of plain numbers, or is damaged ({error})") from None
    state = {}
    for name, array in arrays.items():
        if array.dtype.kind == "V" and array.dtype.itemsize == 2:
            state[name] = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        elif array.dtype.kind == "f":
            state[name] = torch.from_numpy(np.array(array))
        else:
            raise ValueError(f"{path} is not of weights: {name} holds {array.dtype}, and numbers are expected")
    return state


def holds_tensors(contents: Any) -> bool:
    """Return whether the contents of a file are tensors by name, or have some inside."""
    inside = [contents.get(name) for name in INSIDE] if isinstance(contents, Mapping) else []
    candidates = [part for part in (contents, *inside) if isinstance(part, Mapping)]
    return any(isinstance(value, Tensor) for part in candidates for value in part.values())


def tensors_of(contents: Any, origin: str) -> State:
    """Return the tensors in a file's contents, which may lie inside, beside other things."""
    for name in INSIDE:
        inside = contents.get(name) if isinstance(contents, Mapping) else None
        if isinstance(inside, Mapping) and any(isinstance(value, Tensor) for value in inside.values()):
            contents = inside
            break
    if not isinstance(contents, Mapping):
        raise ValueError(f"{origin} holds a {type(contents).__name__}, and a state dict is expected: tensors by name")
    state = {name: value.cpu() for name, value in contents.items() if isinstance(value, Tensor)}
    if not state or not all(isinstance(name, str) for name in state):
        raise ValueError(f"{origin} holds no state dict: tensors by name are expected")
    for name, tensor in state.items():
        if not is_whole(tensor):
            raise ValueError(f"{origin} is damaged: {name} is no plain array of {tuple(tensor.shape)} numbers")
    return state


def _of_folder(folder: Path) -> Source:
    """Return the tensors of a folder, as the hub of transformers and timm keeps models."""
    config = _read_json(folder / "config.json")
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        index = next(iter(sorted(folder.glob("*.index.json"))), None)
        if index is None:
            raise ValueError(f"{folder} holds none of {', '.join(WEIGHTS)}: name the file")
        parts = sorted(set(_read_json(index).get("weight_map", {}).values()))
        state: State = {}
        for part in parts:
            state |= _read_file(folder / Path(part).name)  # a name from a stranger's file stays in the folder
    else:
        state = _read_file(file)
    try:
        if "model_type" in config or "vision_config" in config:
            return Source(state, str(folder), arguments_in(config), _data_of_transformers(config, folder))
        about = config | (config.get("pretrained_cfg") or {})
        return Source(state, str(folder), _stated_by_config_of_timm(config), _data_of_timm(about))
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"{folder / 'config.json'} is damaged: {error}") from error


def _stated_by_config_of_timm(config: dict[str, Any]) -> Arguments:
    """Return what the ``config.json`` of timm's hub tells: the name of the architecture, and changed arguments."""
    name, changed = str(config.get("architecture", "")), config.get("model_args") or {}
    if foreign := OTHER_KINDS.search(name):
        raise ValueError(f"architecture {name!r} is of timm's {foreign[0]} models, which the backbone does not build")
    stated: Arguments = {}
    if name in PRESETS:
        stated["num_heads"] = PRESETS[name]["num_heads"]
    if "quickgelu" in name:
        stated["mlp"] = "quick_gelu"
    elif GELU_TANH.match(name):
        stated["mlp"] = "gelu_tanh"
    for theirs, ours in (("num_heads", "num_heads"), ("img_size", "image_size")):
        if theirs in changed:
            stated[ours] = tuple(changed[theirs]) if isinstance(changed[theirs], list) else changed[theirs]
    pool = changed.get("global_pool", config.get("global_pool"))
    return stated | ({"pool": POOLS[pool]} if pool in POOLS else {})


def _read_json(path: Path) -> dict[str, Any]:
    try:
        contents = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"no {path.name} in {path.parent}: name the file of the weights instead") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({error})") from None
    if not isinstance(contents, dict):
        raise ValueError(f"{path} holds no object: take another copy")
    return contents


def _names_in(config: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return the class names in a config of transformers, unless they only number the classes."""
    names = config.get("id2label")
    if not isinstance(names, dict) or all(str(name).startswith("LABEL_") for name in names.values()):
        return {}
    if not all(str(number).isdecimal() for number in names):
        shown = ", ".join(map(str, names))[:80]
        raise ValueError(f"{origin} is damaged: id2label has names for {shown}")
    return {"class_names": [names[number] for number in sorted(names, key=int)]}


def _data_of_transformers(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    data = _names_in(config, str(folder / "config.json"))
    preprocessor = folder / "preprocessor_config.json"
    if preprocessor.is_file():
        found = _read_json(preprocessor)
        data |= {
            ours: found[theirs] for ours, theirs in (("mean", "image_mean"), ("std", "image_std")) if theirs in found
        }
    return data


def _data_of_timm(config: dict[str, Any]) -> dict[str, Any]:
    data = {name: list(config[name]) for name in ("mean", "std") if isinstance(config.get(name), list | tuple)}
    names, crop = config.get("label_names"), config.get("crop_pct")
    data |= {"class_names": list(names)} if names else {}
    return data | ({"crop_ratio": crop} if isinstance(crop, int | float) and 0.1 <= crop <= 1 else {})


def _of_module(module: nn.Module) -> Source:
    """Return the tensors of a live module, and what its attributes tell."""
    origin = f"a {type(module).__name__} of {type(module).__module__.split('.')[0]}"
    state = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    config = getattr(module, "config", None)
    if hasattr(config, "to_dict"):
        described = config.to_dict()
        return Source(state, origin, arguments_in(described), _names_in(described, origin))
    stated: Arguments = {}
    if hasattr(module, "hidden_dim") and hasattr(module, "conv_proj"):  # torchvision
        heads = next(part for part in module.modules() if isinstance(part, nn.MultiheadAttention)).num_heads
        norm = next(part for part in module.modules() if isinstance(part, nn.LayerNorm))
        stated = {"num_heads": heads, "image_size": module.image_size, "norm_eps": norm.eps}
    elif hasattr(module, "patch_embed") and hasattr(module, "blocks"):  # timm
        stated = _stated_by_timm(module)
    data = _data_of_timm(getattr(module, "pretrained_cfg", None) or {})
    return Source(state, origin, stated, data)


def _stated_by_timm(module: nn.Module) -> Arguments:
    """Return what a model of timm tells: sizes, heads, activation, pooling."""
    block, size = module.blocks[0], getattr(module.patch_embed, "img_size", None)
    kind, rope = type(block).__name__, getattr(module, "rope", None)
    if kind not in ("Block", "EvaBlock") or (rope is not None and type(rope).__name__ != "RotaryEmbeddingDinoV3"):
        what = kind if rope is None else f"{kind} and {type(rope).__name__}"
        raise ValueError(f"its blocks are {what} of timm, which compute something else than those of the backbone")
    stated: Arguments = {"num_heads": block.attn.num_heads, "norm_eps": getattr(block.norm1, "eps", 1e-6)}
    if size is not None:
        stated["image_size"] = tuple(size)
    activation = getattr(block.mlp, "act", None)
    if isinstance(activation, nn.SiLU):
        stated["mlp"] = "swiglu"
    elif isinstance(activation, nn.GELU):
        stated["mlp"] = "gelu" if activation.approximate == "none" else "gelu_tanh"
    elif type(activation).__name__ == "GELUTanh":
        stated["mlp"] = "gelu_tanh"
    elif type(activation).__name__ == "QuickGELU":
        stated["mlp"] = "quick_gelu"
    else:
        raise ValueError(f"the MLP has the activation {type(activation).__name__}, which the backbone lacks")
    pool = getattr(module, "global_pool", "token")
    includes_prefix = getattr(module, "pool_include_prefix", False) or pool == "map"
    if pool not in ("", *POOLS) or (pool in ("avg", "map") and includes_prefix and module.num_prefix_tokens):
        tokens = f"{module.num_prefix_tokens} prefix tokens {'included' if includes_prefix else 'left out'}"
        raise ValueError(f"its pooling is {pool!r} with {tokens}, which the backbone lacks")
    if pool in POOLS and not hasattr(module, "dist_token"):
        stated["pool"] = POOLS[pool]
    return stated
