"""Files of this package: training checkpoints, and safetensors files with the arguments of the model inside."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from vit.model.patch_drop import PatchDrop
from vit.model.vision_transformer import CONFIG_KEY, VisionTransformer
from vit.weights.architecture import DEFAULTS, outline
from vit.weights.checkpoint import check_checkpoint, is_ours, read_blocks, read_encoder
from vit.weights.foreign_source import holds_tensors, unwrap
from vit.weights.formats.format import Arguments, State
from vit.weights.load_report import LoadedWeights, LoadReport
from vit.weights.matching import check_numbers, check_same_tensors
from vit.weights.tensor_files import write_safetensors

KEY = "vit"  # of the metadata: a JSON object with "config" and "pretrained_cfg"
IDLE_IN_EVAL = ("training", "grad_checkpointing")  # attributes of modules that change nothing in eval mode
PAIRS = ("image_size", "patch_size", "patch_stride")  # tuples, which JSON turns into lists


def save_own_file(model: VisionTransformer, path: Path) -> None:
    """Write the weights of a model, its ``config`` and its ``pretrained_cfg`` to a safetensors file."""
    if path.suffix != ".safetensors":
        raise ValueError(f"{path} does not end in .safetensors, as files of format 'vit' do")
    try:
        description = json.dumps({"config": model.config, "pretrained_cfg": getattr(model, "pretrained_cfg", {})})
    except (TypeError, ValueError) as error:
        raise ValueError(f"config and pretrained_cfg must be numbers, texts and lists of them: {error}") from None
    write_safetensors(model.state_dict(), path, {KEY: description})


def is_own_file(contents: Any, metadata: Mapping[str, str], path: Path) -> bool:
    """Return whether a file is a training checkpoint or one of ``vit.save``."""
    if KEY in metadata:
        return True
    return is_ours(contents) if holds_tensors(unwrap(contents)) else path.suffix == ".ckpt"


def read_own_file(contents: Any, metadata: Mapping[str, str], path: Path, origin: str) -> LoadedWeights:
    """Return the model in a file of this package, or a completer's blocks; ``origin`` is its name in the report."""
    if KEY in metadata:
        return read_described(contents, *_read_description(metadata[KEY], path), origin)
    checkpoint = check_checkpoint(contents, path)
    if checkpoint["encoder"] is None:
        arguments, state = read_blocks(checkpoint, path)
        check_numbers(state, origin)
        return LoadedWeights(state, arguments, {}, LoadReport(origin, "vit", matched=list(state)))
    arguments, state, data = read_encoder(checkpoint, path)
    return read_described(state, arguments, data, origin)


def read_state_dict(contents: Any, state: State, origin: str) -> LoadedWeights | None:
    """Return the model whose ``state_dict()`` this is, by the config beside its tensors; None if there is none."""
    metadata = getattr(unwrap(contents), "_metadata", None)
    if not isinstance(metadata, Mapping):
        return None
    noted = {prefix: about.get(CONFIG_KEY) for prefix, about in metadata.items() if isinstance(about, Mapping)}
    noted = {prefix: config for prefix, config in noted.items() if isinstance(config, Mapping)}
    if len(noted) != 1:
        return None
    (prefix, config), *_ = noted.items()
    start = f"{prefix}." if prefix else ""
    own = {name.removeprefix(start): tensor for name, tensor in state.items() if name.startswith(start)}
    remedy = "change a copy of the model instead of its state dict, or take dict(state) and tell num_heads"
    return read_described(own, dict(config), {}, origin, remedy)


def read_described(
    state: State, arguments: Arguments, data: dict[str, Any], origin: str, remedy: str = "it is damaged"
) -> LoadedWeights:
    """Return tensors of a model of this package with all of its arguments, after a check that they fit."""
    pairs = {name: tuple(arguments[name]) for name in PAIRS if isinstance(arguments.get(name), list)}
    arguments = DEFAULTS | arguments | pairs
    blocks = len({name.split(".")[1] for name in state if name.startswith("blocks.")})
    if arguments["depth"] != blocks:
        depth = arguments["depth"]
        raise ValueError(f"{origin} describes a model of depth {depth!r}, and holds {blocks} blocks: {remedy}")
    # On the meta device: an untrusted file may describe a model of any size.
    check_same_tensors(outline(arguments, origin), state, origin, remedy)
    check_numbers(state, origin)
    return LoadedWeights(state, arguments, data, LoadReport(origin, "vit", matched=list(state)))


def _read_description(text: str, path: Path) -> tuple[Arguments, dict[str, Any]]:
    try:
        description = json.loads(text)
        return dict(description["config"]), dict(description["pretrained_cfg"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its description of the model cannot be read ({error!r})") from None


def read_own_model(model: VisionTransformer) -> LoadedWeights:
    """Return copies of the weights of a model of this package."""
    check_unchanged(model)
    state = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    data = dict(getattr(model, "pretrained_cfg", {}))
    return LoadedWeights(state, dict(model.config), data, LoadReport("the model", "vit", matched=list(state)))


def check_unchanged(model: VisionTransformer) -> None:
    """Check that the modules of a model are those that its ``config`` builds: ``vit.load`` builds them again."""
    if type(model) is not VisionTransformer:
        is_subclass = isinstance(model, VisionTransformer)
        remedy = "take vit.load(model.state_dict())" if is_subclass else "convert it by vit.load"
        raise ValueError(
            f"the model is a {type(model).__name__}, and only a vit.VisionTransformer is what its config describes: "
            f"{remedy}"
        )
    rebuilt = outline(model.config, "model.config")
    modules, expected = _list_modules(model, rebuilt), _list_modules(rebuilt, rebuilt)
    names = sorted(modules.keys() | expected.keys())
    changed = next((name for name in names if modules.get(name) != expected.get(name)), None)
    if changed is not None:
        raise ValueError(
            f"{changed} is not as model.config describes it, by which a saved model is built again: take a model whose "
            "modules are its own"
        )
    check_same_tensors(rebuilt, model.state_dict(), "the model", "take a model whose weights are those of its config")


def _list_modules(model: nn.Module, rebuilt: nn.Module) -> dict[str, str]:
    """Return type and settings of each module inside a model by its name, and the settings of the model itself."""
    known = dict(rebuilt.named_modules(remove_duplicate=False))
    modules = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
    listed = {"the model": _settings(model, rebuilt)}
    for name, module in modules.items():
        # The training changes the rate of PatchDrop.
        settings = "" if isinstance(module, PatchDrop) else _settings(module, known.get(name, module))
        listed[name] = f"{type(module)} {settings}"
    return listed


def _settings(module: nn.Module, rebuilt: nn.Module) -> str:
    """Return the settings of a module; those of ours are the attributes that are numbers, words or pairs of them.

    Attributes that the rebuilt module lacks, such as a name that a user gave, are left out.
    """
    is_ours = type(module).__module__.startswith("vit.")
    plain = {
        name: value
        for name, value in (vars(module).items() if is_ours else ())
        if name in vars(rebuilt) and name[0] != "_" and name not in IDLE_IN_EVAL
        if isinstance(value, bool | int | float | str | tuple | None)
    }
    return f"{module.extra_repr()} {plain}"
