"""Reads the weights of a folder or a module of another library, by the reader of that library."""

from pathlib import Path

from torch import nn

from vit.weights.architecture import DEFAULTS
from vit.weights.config_files import read_json, read_parts
from vit.weights.foreign_source import Source, find_tensors, source_of
from vit.weights.formats.format import State
from vit.weights.tensor_files import read_file
from vit.weights.timm_source import read_timm_data, read_timm_folder, read_timm_module
from vit.weights.transformers_source import read_transformers_folder, read_transformers_module

WEIGHTS = ("model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin")
OWN_CONFIG = {"embed_dim", "depth", "num_heads", "patch_size"}  # a config.json with these is of a VisionTransformer


def _read_state(folder: Path) -> State:
    """Return the tensors in the file of weights of a folder, or in all files that its index names."""
    files = [folder / name for name in WEIGHTS if (folder / name).is_file()][:1]
    if not files:
        index = next(iter(sorted(folder.glob("*.index.json"))), None)
        if index is None:
            raise ValueError(f"{folder} holds none of {', '.join(WEIGHTS)}: name the file")
        files = [folder / part for part in read_parts(index)]
    state: State = {}
    for file in files:
        state |= find_tensors(read_file(file)[0], str(file))
    return state


def read_folder(folder: Path) -> Source:
    """Return the tensors and the config.json of a folder, as the hub of transformers and timm keeps models."""
    config = read_json(folder / "config.json")
    state = _read_state(folder)
    try:
        if config.get("model_type") == "timm_wrapper":  # of transformers around a model of timm
            config = {name: value for name, value in config.items() if name != "model_type"}
        if "model_type" in config or "vision_config" in config:
            return read_transformers_folder(folder, config, state)
        if config.keys() >= OWN_CONFIG:
            own = {name: value for name, value in config.items() if name in DEFAULTS}
            about = config | (config.get("pretrained_cfg") or {})
            return Source(state, str(folder), data=read_timm_data(about), config=own)
        return read_timm_folder(folder, config, state)
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"{folder / 'config.json'} is damaged: {error}") from error


def _read_torchvision_module(module: nn.Module) -> Source:
    """Return the tensors of a module of torchvision, and what its attributes tell."""
    heads = next(part for part in module.modules() if isinstance(part, nn.MultiheadAttention)).num_heads
    norm = next(part for part in module.modules() if isinstance(part, nn.LayerNorm))
    stated = {"num_heads": heads, "image_size": module.image_size, "norm_eps": norm.eps}
    data = read_timm_data(getattr(module, "pretrained_cfg", None) or {})  # its user may have set one
    return source_of(module, stated, data)


def read_module(module: nn.Module) -> Source:
    """Return the tensors of a module of another library, and what its attributes tell."""
    if hasattr(module, "timm_model"):  # transformers' wrapper
        return read_module(module.timm_model)
    if hasattr(getattr(module, "config", None), "to_dict"):
        return read_transformers_module(module)
    if hasattr(module, "hidden_dim") and hasattr(module, "conv_proj"):
        return _read_torchvision_module(module)
    return read_timm_module(module)
