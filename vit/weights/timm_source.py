"""Reads models of timm: what the config.json of its hub tells, what a module tells, and pretrained ones by name."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vit.model.mlp import ACTIVATIONS
from vit.model.presets import PRESETS
from vit.support.checks import is_crop_ratio
from vit.support.extras import import_extra
from vit.weights.architecture import DEFAULTS
from vit.weights.config_files import names_by_number
from vit.weights.foreign_source import Source, find_tensors, source_of
from vit.weights.formats import timm_config
from vit.weights.formats.format import Arguments, State
from vit.weights.tensor_files import read_file

# Names of timm's architectures whose parts the backbone lacks, such as rotary positions beside learned ones.
OTHER_KINDS = re.compile("rope|eva|beit")
# The same of architectures that timm itself tells by their modules, where it is not installed.
OTHER_MODULES = re.compile("rpn|_pe_")
# Architectures with the approximate GELU, which none of their files tells.
GELU_TANH = re.compile(r"vit_(base_patch32|large_patch16(?=_siglip(_gap)?_512)|(so400m|giantopt)_patch16)_siglip")
OF_IMAGENET = re.compile(
    r"(^|_)in(1|12|21|22)k(_|$)"
)  # in the tag of pretrained weights, such as "augreg_in21k_ft_in1k"
POOLS = {theirs: ours for ours, theirs in timm_config.POOLS.items()}
# Arguments of a timm model that its tensors tell, or that change nothing in eval mode.
READ_FROM_TENSORS = {
    *("embed_dim", "depth", "patch_size", "in_chans", "num_classes", "mlp_ratio", "qkv_bias", "qk_norm", "class_token"),
    *("no_embed_class", "reg_tokens", "init_values", "pre_norm", "fc_norm", "dynamic_img_size", "weight_init"),
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
}
# Before the names of presets, as vit.timm_models registers them with timm, and as timm itself has them.
OF_OURS, OF_TIMM = "vit_attention_", "vit_"
READ_FROM_ARCHITECTURE = ("num_heads", "mlp", "norm_eps")
READ_FROM_CONFIG = {"num_heads", "img_size", "global_pool", "act_layer"}  # further ones that are read
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


def read_timm_data(config: dict[str, Any]) -> dict[str, Any]:
    """Return how a pretrained_cfg of timm scales, crops and normalises images, and the names of its classes.

    ``foreign.py`` takes the interpolation out again: images are always scaled bicubically here.
    """
    data = {name: list(config[name]) for name in ("mean", "std") if isinstance(config.get(name), list | tuple)}
    names, crop = config.get("label_names"), config.get("crop_pct")
    if names:
        data["class_names"] = names_by_number(names, "label_names") if isinstance(names, Mapping) else list(names)
    data |= {"stretch": True} if config.get("crop_mode") == "squash" else {}
    data |= {"interpolation": config["interpolation"]} if config.get("interpolation") else {}
    return data | ({"crop_ratio": crop} if is_crop_ratio(crop) else {})


def _check_blocks(module: nn.Module) -> None:
    """Check that the blocks of a model of timm compute what those of the backbone do."""
    block, rope = module.blocks[0], getattr(module, "rope", None)
    what = type(block).__name__
    if what not in ("Block", "EvaBlock") or (rope is not None and type(rope).__name__ != "RotaryEmbeddingDinoV3"):
        what += "" if rope is None else f" and {type(rope).__name__}"
        raise ValueError(f"its blocks are {what} of timm, which compute something else than those of the backbone")
    if rope is not None and getattr(module, "pos_embed", None) is not None:
        raise ValueError("it has rotary positions beside learned ones, and the backbone has one of the two")
    for name, usual in ROTARY_OF_TIMM.items():
        if (other := getattr(rope, name, usual)) != usual:
            raise ValueError(f"its rotary positions have {name} {other!r}, and those of the backbone {usual!r}")
    if getattr(block.mlp, "gate_last", False):
        raise ValueError(
            "its MLP is gated by the second half of its hidden layer, and that of the backbone by the first half"
        )


def _read_attributes(module: nn.Module) -> Arguments:
    """Return what a model of timm tells: sizes, heads, activation, pooling."""
    _check_blocks(module)
    block, size = module.blocks[0], getattr(module.patch_embed, "img_size", None)
    stated: Arguments = {"num_heads": block.attn.num_heads, "norm_eps": getattr(block.norm1, "eps", 1e-6)}
    if size is not None:
        stated["image_size"] = tuple(size)
    if getattr(module, "pos_embed", None) is not None:
        stated["pos_embed"] = "learned"
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


def _read_architecture(name: str, state: State) -> Arguments:
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
        _check_blocks(model)
    try:
        attributes = _read_attributes(model)
        same_width = model.embed_dim == len(state["patch_embed.proj.weight"])
        return {name: attributes[name] for name in READ_FROM_ARCHITECTURE} if same_width else {}
    except (AttributeError, KeyError, ValueError):  # such as a pooling that model_args replaces
        return {}


def _read_config(config: dict[str, Any], state: State) -> Arguments:
    """Return what the ``config.json`` of timm's hub tells by the architecture's name and the changed arguments."""
    name, changed = str(config.get("architecture", "")), config.get("model_args") or {}
    if foreign := OTHER_KINDS.search(name):
        raise ValueError(f"architecture {name!r} is of timm's {foreign[0]} models, which the backbone does not build")
    unread = sorted(changed.keys() - READ_FROM_CONFIG - READ_FROM_TENSORS)
    if unread:
        raise ValueError(
            f"model_args has {unread[0]} {changed[unread[0]]!r}, which only timm can build: load it with timm, and "
            "give the model to vit.load"
        )
    stated: Arguments = {}
    is_ours, name = name.startswith(OF_OURS), name.replace(OF_OURS, OF_TIMM, 1)
    if name in PRESETS:
        preset = DEFAULTS | PRESETS[name]
        # Ours may have been given rotary positions, which its config does not tell.
        is_told = not is_ours or preset["pos_embed"] != "learned"
        stated |= {each: preset[each] for each in (*READ_FROM_ARCHITECTURE, *("pos_embed",) * is_told)}
    elif name:
        stated |= _read_architecture(name, state)
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


def read_timm_folder(folder: Path, config: dict[str, Any], state: State) -> Source:
    """Return the tensors of a folder with what its config.json tells."""
    about = config | (config.get("pretrained_cfg") or {})
    return Source(state, str(folder), _read_config(config, state), read_timm_data(about))


def read_timm_module(module: nn.Module) -> Source:
    """Return the tensors of a module with what its attributes tell, as far as it has those of timm."""
    is_transformer = hasattr(module, "patch_embed") and hasattr(module, "blocks")
    stated = _read_attributes(module) if is_transformer else {}
    return source_of(module, stated, read_timm_data(getattr(module, "pretrained_cfg", None) or {}))


def _names_of_imagenet(model: nn.Module) -> dict[str, Any]:
    """Return the names of the classes if timm's name of the weights says that they classify ImageNet ("in1k", ...)."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(model)
    if subset is None or not OF_IMAGENET.search(str(getattr(model, "pretrained_cfg", {}).get("tag"))):
        return {}
    classes = ImageNetInfo(subset)
    names = classes.label_descriptions()
    counts = Counter(names)  # a crane is a bird and a machine: such names get their definition
    return {
        "class_names": [
            name if counts[name] == 1 else classes.index_to_description(number, detailed=True)
            for number, name in enumerate(names)
        ]
    }


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
    source = read_timm_module(model)
    return replace(source, origin=origin, data=_names_of_imagenet(model) | source.data)
