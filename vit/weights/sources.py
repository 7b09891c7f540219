"""Reads weights of another library: its tensors, and what its configs or the attributes of its modules tell."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.model.layers import ACTIVATIONS
from vit.model.presets import PRESETS
from vit.support.extras import import_extra
from vit.weights.architecture import DEFAULTS
from vit.weights.formats import timm_config
from vit.weights.formats.format import Arguments, State
from vit.weights.formats.transformers_config import arguments_in
from vit.weights.tensor_files import is_whole, read_file

# Keys under which files of other libraries keep their tensors: DINO's teacher, averaged weights, weights. The first key
# that is there counts.
INSIDE = ("teacher", "model_ema", "state_dict_ema", "state_dict", "model", "module")
WEIGHTS = ("model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin")
# Names of timm's architectures whose parts the backbone lacks, such as rotary positions beside learned ones.
OTHER_KINDS = re.compile("rope|eva|beit")
# The same of architectures that timm itself tells by their modules, where it is not installed.
OTHER_MODULES = re.compile("rpn|_pe_")
# Architectures with the approximate GELU, which none of their files tells.
GELU_TANH = re.compile(r"vit_(base_patch32|large_patch16(?=_siglip(_gap)?_512)|(so400m|giantopt)_patch16)_siglip")
MOST_JSON = 2**24  # bytes of a config
OWN_CONFIG = {"embed_dim", "depth", "num_heads", "patch_size"}  # a config.json with these is of a VisionTransformer
POOLS = {theirs: ours for ours, theirs in timm_config.POOLS.items()}
# Arguments of a timm model that its tensors tell, or that change nothing in eval mode.
READ_FROM_TENSORS = {
    *("embed_dim", "depth", "patch_size", "in_chans", "num_classes", "mlp_ratio", "qkv_bias", "qk_norm", "class_token"),
    *("no_embed_class", "reg_tokens", "init_values", "pre_norm", "fc_norm", "dynamic_img_size", "weight_init"),
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
}
READ_FROM_ARCHITECTURE = ("num_heads", "mlp", "norm_eps")
READ = {"num_heads", "img_size", "global_pool", "act_layer"}  # further ones that are read
# Settings of timm's rotary positions that the backbone has, and no others.
ROTARY_OF_TIMM = {
    "temperature": 100.0,
    "min_period": None,
    "max_period": None,
    "normalize_coords": "separate",
    "grid_offset": 0.0,
    "grid_indexing": "ij",
    "rotate_half": True,
}
MLPS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "swiglu"}


@dataclass(frozen=True)
class Source:
    """Tensors of a model of another library, and what else is known of it.

    Attributes:
        state: The tensors under their names there.
        origin: Where they come from, in words.
        stated: Arguments of ``VisionTransformer`` that are known otherwise than from the tensors.
        data: ``mean``, ``std``, ``class_names`` and so on, as far as they are known.
        config: All arguments, if the tensors are of a model of this package.
    """

    state: State
    origin: str
    stated: Arguments = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    config: Arguments | None = None


def find_tensors(contents: Any, origin: str) -> State:
    """Return the tensors in a state dict or in the contents of a file, by name."""
    contents = unwrap(contents)
    if not isinstance(contents, Mapping):
        raise ValueError(f"{origin} holds a {type(contents).__name__}, and a state dict is expected: tensors by name")
    state = {name: value.cpu() for name, value in contents.items() if isinstance(value, Tensor)}
    if not state or not all(isinstance(name, str) for name in state):
        raise ValueError(f"{origin} holds no state dict: tensors by name are expected")
    for name, tensor in state.items():
        if not is_whole(tensor):
            raise ValueError(f"{origin} is damaged: {name} is no plain array of {tuple(tensor.shape)} numbers")
    return state


def unwrap(contents: Any) -> Any:
    """Return the part of a file's contents in which the tensors lie, or the contents themselves."""
    parts = [contents.get(name) for name in INSIDE] if isinstance(contents, Mapping) else []
    return next((part for part in parts if holds_tensors(part)), contents)


def holds_tensors(part: Any) -> bool:
    """Return whether a part of a file's contents is a mapping to tensors, perhaps beside other things."""
    return isinstance(part, Mapping) and any(isinstance(value, Tensor) for value in part.values())


def read_folder(folder: Path) -> Source:
    """Return the tensors and the config.json of a folder, as the hub of transformers and timm keeps models."""
    config = _read_json(folder / "config.json")
    files = [folder / name for name in WEIGHTS if (folder / name).is_file()][:1]
    if not files:
        index = next(iter(sorted(folder.glob("*.index.json"))), None)
        if index is None:
            raise ValueError(f"{folder} holds none of {', '.join(WEIGHTS)}: name the file")
        files = [folder / part for part in _read_parts(index)]
    state: State = {}
    for file in files:
        state |= find_tensors(read_file(file)[0], str(file))
    try:
        if config.get("model_type") == "timm_wrapper":  # of transformers around a model of timm
            config = {name: value for name, value in config.items() if name != "model_type"}
        if "model_type" in config or "vision_config" in config:
            return Source(state, str(folder), arguments_in(config), _read_data_of_transformers(config, folder))
        about = config | (config.get("pretrained_cfg") or {})
        if config.keys() >= OWN_CONFIG:
            own = {name: value for name, value in config.items() if name in DEFAULTS}
            return Source(state, str(folder), data=_read_data_of_timm(about), config=own)
        return Source(state, str(folder), _read_config_of_timm(config, state), _read_data_of_timm(about))
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"{folder / 'config.json'} is damaged: {error}") from error


def _read_config_of_timm(config: dict[str, Any], state: State) -> Arguments:
    """Return what the ``config.json`` of timm's hub tells by the architecture's name and the changed arguments."""
    name, changed = str(config.get("architecture", "")), config.get("model_args") or {}
    if foreign := OTHER_KINDS.search(name):
        raise ValueError(f"architecture {name!r} is of timm's {foreign[0]} models, which the backbone does not build")
    unread = sorted(changed.keys() - READ - READ_FROM_TENSORS)
    if unread:
        raise ValueError(
            f"model_args has {unread[0]} {changed[unread[0]]!r}, which only timm can build: load it with timm, and "
            "give the model to vit.load"
        )
    stated: Arguments = {}
    if name in PRESETS:
        stated |= {each: (DEFAULTS | PRESETS[name])[each] for each in READ_FROM_ARCHITECTURE}
    elif name:
        stated |= _read_architecture_of_timm(name, state)
    if "quickgelu" in name:
        stated["mlp"] = "quick_gelu"
    elif GELU_TANH.match(name):
        stated["mlp"] = "gelu_tanh"
    if "act_layer" in changed:
        if changed["act_layer"] not in ACTIVATIONS:
            raise ValueError(f"the MLP has the activation {changed['act_layer']!r}, which the backbone lacks")
        stated["mlp"] = changed["act_layer"]
    for theirs, ours in (("num_heads", "num_heads"), ("img_size", "image_size")):
        if theirs in changed:
            stated[ours] = tuple(changed[theirs]) if isinstance(changed[theirs], list) else changed[theirs]
    pool = changed.get("global_pool", config.get("global_pool"))
    if isinstance(pool, str) and pool not in ("", *POOLS):
        raise ValueError(f"its pooling is {pool!r}, which the backbone lacks")
    # The head of a distilled DeiT tells its pooling.
    return stated | ({"pool": POOLS[pool]} if pool in POOLS and "dist_token" not in state else {})


def _read_architecture_of_timm(name: str, state: State) -> Arguments:
    """Return what an architecture of timm tells, if timm is installed and has it in the width of these tensors.

    Raises:
        ValueError: If its blocks compute something else than those of the backbone.
    """
    if not re.fullmatch(r"[\w.-]*", name):  # timm would read another folder, or the network
        raise ValueError(f"architecture {name[:80]!r} is no name of a model of timm: take another copy")
    try:
        import timm

        with torch.device("meta"):
            model = timm.create_model(name)
    except (ImportError, RuntimeError) as error:
        if foreign := OTHER_MODULES.search(name):
            raise ValueError(
                f"architecture {name!r} is of timm's {foreign[0].strip('_')} models, which the backbone does not build"
            ) from error
        return {}
    if hasattr(model, "blocks"):
        _check_blocks_of_timm(model)
    try:
        module = _read_module_of_timm(model)
        same_width = model.embed_dim == len(state["patch_embed.proj.weight"])
        return {name: module[name] for name in READ_FROM_ARCHITECTURE} if same_width else {}
    except (AttributeError, KeyError, ValueError):  # such as a pooling that model_args replaces
        return {}


def _read_parts(index: Path) -> list[str]:
    """Return the names of the files that hold the weights, by the index beside them."""
    places = _read_json(index).get("weight_map")
    names = list(places.values()) if isinstance(places, dict) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{index} is damaged: weight_map must name the file of each tensor")
    for name in names:
        if name in ("", "..") or Path(name).name != name:  # a stranger's file must name none outside of its folder
            raise ValueError(f"{index} is refused: its weight_map names {name!r}, which is no file of the same folder")
    return sorted(set(names))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ValueError(f"no {path.name} in {path.parent}: name the file of the weights instead")
    if not path.is_file():
        raise ValueError(f"{path} is no regular file: take another copy")  # reading a pipe might never end
    try:
        with path.open("rb") as file:
            text = file.read(MOST_JSON + 1)
        if len(text) > MOST_JSON:
            raise ValueError(f"more than {MOST_JSON:,} bytes")
        contents = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({error})") from None
    if not isinstance(contents, dict):
        raise ValueError(f"{path} holds no object: take another copy")
    return contents


def _read_names(config: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return the class names in a config of transformers, unless they only number the classes."""
    names = config.get("id2label")
    if not isinstance(names, dict) or all(str(name).startswith("LABEL_") for name in names.values()):
        return {}
    if not all(str(number).isdecimal() for number in names):
        shown = ", ".join(map(str, names))[:80]
        raise ValueError(f"{origin} is damaged: id2label has names for {shown}")
    return {"class_names": _by_number(names, f"id2label of {origin}")}


def _by_number(names: Mapping[Any, Any], origin: str) -> list[Any]:
    """Return class names in the order of their numbers, the rows of a head."""
    by_number = {int(number): name for number, name in names.items()}
    if sorted(by_number) != [*range(len(names))]:
        shown = ", ".join(map(str, sorted(by_number)))[:80]
        raise ValueError(f"{origin} names the classes {shown}: number them from 0 without gaps")
    return [by_number[number] for number in range(len(names))]


def _read_data_of_transformers(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    data = _read_names(config, str(folder / "config.json"))
    preprocessor = folder / "preprocessor_config.json"
    found = _read_json(preprocessor) if preprocessor.is_file() else {}
    return data | _read_images_of_transformers(found, config.get("num_channels", 3))


def _read_images_of_transformers(found: dict[str, Any], channels: int) -> dict[str, Any]:
    """Return how a preprocessor_config.json scales, crops and normalises images."""
    factor = 255 * (found.get("rescale_factor", 1 / 255) if found.get("do_rescale", True) else 1)  # of pixels in [0, 1]
    names = [name for name in ("mean", "std") if isinstance(found.get(f"image_{name}"), list)]
    data: dict[str, Any] = {name: [number / factor for number in found[f"image_{name}"]] for name in names}
    if found.get("do_normalize") is False:
        data = {"mean": [0.0] * channels, "std": [1 / factor] * channels}
    size, crop = found.get("size"), found.get("crop_size")
    kind = str(found.get("image_processor_type", found.get("feature_extractor_type", "")))
    if isinstance(size, int):  # of earlier versions: the shorter edge for CLIP, rows and columns for the others
        size = {"shortest_edge": size} if kind.startswith("CLIP") else {"height": size}
    if isinstance(size, Mapping) and "height" in size:
        data["stretch"] = True  # whole photographs are scaled to this height and width
    scaled = size.get("height", size.get("shortest_edge")) if isinstance(size, Mapping) else None
    side = crop.get("height") if isinstance(crop, Mapping) else crop
    if found.get("do_center_crop") and isinstance(scaled, int) and isinstance(side, int) and scaled <= 10 * side:
        data["crop_ratio"] = min(1.0, side / scaled)
    return data


def _read_data_of_timm(config: dict[str, Any]) -> dict[str, Any]:
    data = {name: list(config[name]) for name in ("mean", "std") if isinstance(config.get(name), list | tuple)}
    names, crop = config.get("label_names"), config.get("crop_pct")
    if names:
        data["class_names"] = _by_number(names, "label_names") if isinstance(names, Mapping) else list(names)
    data |= {"stretch": True} if config.get("crop_mode") == "squash" else {}
    return data | ({"crop_ratio": crop} if isinstance(crop, int | float) and 0.1 <= crop <= 1 else {})


def read_module(module: nn.Module) -> Source:
    """Return the tensors of a module of another library, and what its attributes tell."""
    origin = f"a {type(module).__name__} of {type(module).__module__.split('.')[0]}"
    state = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    if hasattr(module, "timm_model"):  # transformers' wrapper
        return read_module(module.timm_model)
    if hasattr(getattr(module, "config", None), "to_dict"):  # transformers
        config = module.config.to_dict()
        return Source(state, origin, arguments_in(config), _read_names(config, origin))
    stated: Arguments = {}
    if hasattr(module, "hidden_dim") and hasattr(module, "conv_proj"):  # torchvision
        heads = next(part for part in module.modules() if isinstance(part, nn.MultiheadAttention)).num_heads
        norm = next(part for part in module.modules() if isinstance(part, nn.LayerNorm))
        stated = {"num_heads": heads, "image_size": module.image_size, "norm_eps": norm.eps}
    elif hasattr(module, "patch_embed") and hasattr(module, "blocks"):
        stated = _read_module_of_timm(module)
    return Source(state, origin, stated, _read_data_of_timm(getattr(module, "pretrained_cfg", None) or {}))


def read_timm(name: str, origin: str) -> Source:
    """Return the pretrained weights of a model of timm by its name; timm downloads them or has them in its cache.

    Args:
        name: A name of ``timm.create_model``, such as "vit_small_patch16_224.augreg_in21k". "NAME=FILE" takes the
            weights from a file.
        origin: The name in messages.

    Raises:
        ValueError: If timm has no such model, or cannot get its weights.
    """
    name, _, file = name.partition("=")
    overlay = None
    if file:
        overlay = {"state_dict": find_tensors(read_file(Path(file))[0], file), "custom_load": False}
    timm = import_extra("timm", "timm")
    try:
        model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    except Exception as error:  # timm and the libraries with which it downloads raise many kinds
        reason = " ".join(str(error).split())[:300]
        is_known = not file and not isinstance(error, RuntimeError)
        remedy = f"; with a file of its weights, {origin}=FILE needs no network" if is_known else ""
        raise ValueError(f"timm cannot give {origin}: {reason}{remedy}") from error
    return replace(read_module(model), origin=origin)


def _read_module_of_timm(module: nn.Module) -> Arguments:
    """Return what a model of timm tells: sizes, heads, activation, pooling."""
    _check_blocks_of_timm(module)
    block, size = module.blocks[0], getattr(module.patch_embed, "img_size", None)
    stated: Arguments = {"num_heads": block.attn.num_heads, "norm_eps": getattr(block.norm1, "eps", 1e-6)}
    if size is not None:
        stated["image_size"] = tuple(size)
    activation = getattr(block.mlp, "act", None)
    kind = "GELUTanh" if getattr(activation, "approximate", "none") == "tanh" else type(activation).__name__
    if kind not in MLPS:
        raise ValueError(f"the MLP has the activation {kind}, which the backbone lacks")
    stated["mlp"] = MLPS[kind]
    pool = getattr(module, "global_pool", "token")
    includes_prefix = getattr(module, "pool_include_prefix", False) or pool == "map"
    if pool not in ("", *POOLS) or (pool in ("avg", "map") and includes_prefix and module.num_prefix_tokens):
        tokens = f"{module.num_prefix_tokens} prefix tokens {'included' if includes_prefix else 'left out'}"
        raise ValueError(f"its pooling is {pool!r} with {tokens}, which the backbone lacks")
    if pool in POOLS and not hasattr(module, "dist_token"):
        stated["pool"] = POOLS[pool]
    return stated


def _check_blocks_of_timm(module: nn.Module) -> None:
    """Check that the blocks of a model of timm compute what those of the backbone do."""
    block, rope = module.blocks[0], getattr(module, "rope", None)
    what = type(block).__name__
    if what not in ("Block", "EvaBlock") or (rope is not None and type(rope).__name__ != "RotaryEmbeddingDinoV3"):
        what += "" if rope is None else f" and {type(rope).__name__}"
        raise ValueError(f"its blocks are {what} of timm, which compute something else than those of the backbone")
    for name, usual in ROTARY_OF_TIMM.items():
        if (other := getattr(rope, name, usual)) != usual:
            raise ValueError(f"its rotary positions have {name} {other!r}, and those of the backbone {usual!r}")
    if getattr(block.mlp, "gate_last", False):
        raise ValueError(
            "its MLP is gated by the second half of its hidden layer, and that of the backbone by the first half"
        )
