"""Builds the model that a file, a folder, a state dict or a module describes, and fills in its weights."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.model.vision_transformer import VisionTransformer
from vit.weights.architecture import arguments_of
from vit.weights.checkpoint import load_tensors, read_checkpoint
from vit.weights.formats import Arguments, State, described, detect
from vit.weights.load_report import LoadReport
from vit.weights.matching import check_numbers, check_same_tensors
from vit.weights.saved import check_unchanged, is_described, read_saved
from vit.weights.sources import Source, holds_tensors, read_source
from vit.weights.surgery import fitted

READER = "reader.encoder."  # the names of the encoder's weights in a checkpoint of a SequenceReader
OWN = ("network.", "vit.", "blocks.", READER)  # starts of names in training checkpoints
PACKAGED = ("cifar10",)  # each a safetensors file and a model card beside this file
# Arguments that tensors do not tell, so that the caller may.
TOLD_BY_CALLER = ("num_heads", "mlp", "norm_eps", "pos_embed_interpolation")
DEFAULTS: Arguments = {
    name: parameter.default for name, parameter in inspect.signature(VisionTransformer).parameters.items()
}

WeightsSource = str | Path | Mapping[str, Tensor] | nn.Module


@dataclass(frozen=True)
class Trained:
    """Trained tensors under our names, the arguments of their model, and what is known of the data."""

    state: State
    arguments: Arguments
    data: dict[str, Any]
    report: LoadReport


def load(source: WeightsSource, *, strict: bool = True, **changes: Any) -> VisionTransformer:
    """Return a trained model, in eval mode.

    ``source`` is a training checkpoint (.ckpt), a file of ``vit.save`` (.safetensors), the name "cifar10" of the model
    that comes with the package (``./cifar10`` is a file of that name), or the weights of another library: of timm,
    transformers, torchvision, Google (.npz), OpenAI, or the authors of DINOv2, as a file, a folder with a config.json,
    a state dict or a live module. Of a ``SequenceReader``, the encoder is returned. No code in a file is executed.

    ``changes`` are arguments of ``VisionTransformer``. Where they differ from those of the trained model, its weights
    are fitted: positions and patches are resized, tokens and heads are dropped or new. ``model.load_report`` says what
    became of each tensor.

    The model takes normalised images: ``model.pretrained_cfg``, which has timm's name, holds the ``mean`` and ``std``
    for this, the ``input_size`` (channels, rows, columns), the ``class_names``, and the ``crop_ratio`` of its data.

    >>> model = load("cifar10", num_classes=3, image_size=48)
    >>> print(model.load_report)
    weights of cifar10 (vit): 77 as they are, resized: pos_embed, new: head.weight, head.bias

    Args:
        source: What holds the weights.
        strict: Whether a tensor of another library that the model has no place for, or lacks, is an error. If False it
            is dropped, or stays as initialised.
        changes: Arguments of the model that differ from those of the trained one, or that its tensors do not tell, such
            as ``num_heads`` where heads are not 64 channels wide.

    Raises:
        ValueError: If the source holds no Vision Transformer, is damaged or carries code, or a change does not fit.
    """
    unknown = [name for name in changes if name not in DEFAULTS]
    if unknown:
        raise ValueError(f"VisionTransformer has no argument {unknown[0]!r}: it takes {', '.join(DEFAULTS)}")
    trained = read_model(source, changes, strict)
    arguments = trained.arguments | changes
    report, state = trained.report, trained.state
    precision = torch.promote_types(state["patch_embed.proj.weight"].dtype, torch.float32)
    model = _built(arguments, report.origin).to(precision)
    if any(arguments[name] != value for name, value in trained.arguments.items()):
        same_classes = "num_classes" not in changes or changes["num_classes"] == trained.arguments["num_classes"]
        state = fitted(state, trained.arguments, model, report, same_classes)
        check_same_tensors(model, state, report.origin, "change fewer arguments")
    model.load_state_dict(state)
    same_number = model.num_classes == trained.arguments["num_classes"]
    data = trained.data if same_number else trained.data | {"class_names": None, "thresholds": None}
    channels = arguments["in_channels"]
    if channels != trained.arguments["in_channels"]:
        data |= {name: [sum(data[name]) / len(data[name])] * channels for name in ("mean", "std") if data.get(name)}
    model.pretrained_cfg = _described_data(model, data, report.origin)
    model.load_report = report
    return model.eval()


def read_model(source: WeightsSource, told: Mapping[str, Any], strict: bool = True) -> Trained:
    """Return trained tensors under our names, checked against the arguments of their model.

    Args:
        source: What ``load`` takes.
        told: Arguments of the model that is wanted; those that tensors do not tell are taken from here.
        strict: Whether a tensor without a place is an error.

    Raises:
        ValueError: If the source holds no Vision Transformer, is damaged or carries code.
    """
    if isinstance(source, VisionTransformer):
        check_unchanged(source)
        state = {name: tensor.detach().cpu().clone() for name, tensor in source.state_dict().items()}
        report = LoadReport("the model", "vit", matched=list(state))
        return Trained(state, dict(source.config), dict(getattr(source, "pretrained_cfg", {})), report)
    if isinstance(source, str | Path):
        path = Path(__file__).with_name(f"{source}.safetensors") if source in PACKAGED else Path(source)
        if _is_own(path):
            arguments, state, data = (read_saved if path.suffix == ".safetensors" else _read_checkpoint)(path)
            _check_described(arguments, state, path)
            report = LoadReport(str(source), "vit", matched=list(state))
            return Trained(state, DEFAULTS | arguments, data, report)
    return _foreign(read_source(source), told, strict)


def _is_own(path: Path) -> bool:
    """Return whether a file is one of this package, a training checkpoint or one of ``vit.save``."""
    if path.suffix == ".safetensors":
        return not path.is_file() or is_described(path)
    if not path.is_file():
        return path.suffix == ".ckpt"
    if path.suffix not in (".ckpt", ".pth", ".pt", ".bin"):
        return False
    contents = load_tensors(path)
    if not holds_tensors(contents):
        return path.suffix == ".ckpt"
    described, state = contents.get("hyper_parameters"), contents.get("state_dict")
    # Other trainings with Lightning have hyper-parameters as well.
    if isinstance(contents.get("module"), str):  # the class that was trained
        return True
    is_ours = isinstance(described, Mapping) and bool(described.keys() & DEFAULTS.keys())
    return is_ours and isinstance(state, Mapping) and any(str(name).startswith(OWN) for name in state)


def _foreign(source: Source, told: Mapping[str, Any], strict: bool) -> Trained:
    """Return the tensors of another library under our names.

    Raises:
        ValueError: If no format fits, a tensor has no place, or numbers are not finite.
    """
    detected = detect(source.state)
    if detected is None:
        raise ValueError(f"{source.origin} holds no Vision Transformer of a known format: {described(source.state)}")
    format, prefix = detected
    reading = format.read(source.state, prefix)
    state, known = reading.state, reading.known
    check_numbers(state, source.origin)
    unplaced = sorted(source.state.keys() - known)
    if unplaced and strict:
        raise ValueError(
            f"{source.origin} has {len(unplaced)} tensors that the backbone lacks: {', '.join(unplaced[:4])}"
            f"{' and others' if len(unplaced) > 4 else ''} ({described(unplaced)}); strict=False leaves them out"
        )
    short = {name.removeprefix(prefix) for name in known}
    report = LoadReport(source.origin, format.name, dropped=unplaced)
    report.folded += sorted(reading.folded)
    report.zeros += sorted(reading.zeros)
    for name in (name for name in state if name not in reading.folded | reading.zeros):
        (report.matched if name in short else report.renamed).append(name)
    opened = format.before_reading({name.removeprefix(prefix): tensor for name, tensor in source.state.items()})
    stated = format.told_by_tensors(opened) | source.stated
    stated |= {name: told[name] for name in TOLD_BY_CALLER if name in told and name not in stated}
    is_mlp_assumed = "mlp" not in stated  # the default of a family is a guess where its files are of several kinds
    stated = dict(format.defaults) | stated
    try:
        arguments = DEFAULTS | arguments_of(state, stated, told.get("image_size"))
        model = _built(arguments, source.origin, "meta")
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{source.origin} ({format.name}): {error}") from error
    if arguments["pool"] == "map" and (arguments["class_token"] or arguments["num_registers"]):
        raise ValueError(
            f"{source.origin} ({format.name}) pools by attention beside a class token or registers: its library leaves "
            "these out of the pooling, and the backbone does not"
        )
    if "num_heads" not in stated and "blocks.0.attn.q_norm.weight" not in state:
        report.assumed.append(f"num_heads {arguments['num_heads']}")
    report.assumed += [f"mlp {arguments['mlp']}"] if is_mlp_assumed else []
    report.assumed += [f"norm_eps {arguments['norm_eps']}"] if "norm_eps" not in stated else []
    expected = model.state_dict()
    if "pos_embed" not in state and not model.pos_embed.requires_grad:
        state["pos_embed"] = torch.zeros(expected["pos_embed"].shape)  # rotary models have no table
    missing = [name for name in expected if name not in state]
    if missing and not strict:
        own = VisionTransformer(**arguments).state_dict()
        state |= {name: own[name] for name in missing}
        report.fresh += missing
    check_same_tensors(model, state, source.origin, "strict=False leaves new tensors as initialised" if missing else "")
    data = dict(format.data) if arguments["in_channels"] == 3 else {}
    if not data and not source.data.get("mean"):
        report.assumed.append("mean and std of 0.5")
    data |= source.data
    names = data.get("class_names")
    if names is not None and len(names) != arguments["num_classes"]:
        del data["class_names"]  # of a head that was left out
    return Trained(state, arguments, data, report)


def _described_data(model: VisionTransformer, given: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return what a file says about its data, after a check; what it does not say is the default of ``ViTClassifier``.

    Raises:
        ValueError: If it does not describe images and classes of the model.
    """
    embed = model.patch_embed
    channels = embed.in_channels
    middle = [0.5] * channels
    data = {"mean": middle, "std": middle, "class_names": None, "crop_ratio": 1.0} | given
    data["input_size"] = [channels, *embed.image_size]
    names, crop, thresholds = data["class_names"], data["crop_ratio"], data.get("thresholds")
    right = {
        "mean": _are_numbers(data["mean"], channels),
        "std": _are_numbers(data["std"], channels) and min(data["std"]) > 0,
        "class_names": names is None or _are_names(names, model.num_classes),
        "crop_ratio": _are_numbers([crop], 1) and 0.1 <= crop <= 1,
        "thresholds": thresholds is None or _are_numbers(thresholds, model.num_classes),
    }
    wrong = [name for name, is_right in right.items() if not is_right]
    if wrong:
        shown = repr(data[wrong[0]])[:80]
        raise ValueError(
            f"{origin} is damaged: {wrong[0]} ({shown}) does not fit a model of {channels} channels and "
            f"{model.num_classes} classes"
        )
    return data


def _are_numbers(values: Any, count: int) -> bool:
    return (
        isinstance(values, list | tuple)
        and len(values) == count
        and all(isinstance(value, Real) and math.isfinite(value) for value in values)
    )


def _are_names(values: Any, count: int) -> bool:
    return (
        isinstance(values, list | tuple)
        and len(values) == count
        and all(isinstance(value, str) and value.isprintable() for value in values)
    )


def _read_checkpoint(path: Path) -> tuple[Arguments, State, dict[str, Any]]:
    """Return the constructor's arguments, the weights and the ``pretrained_cfg`` in a training checkpoint."""
    checkpoint = read_checkpoint(path)
    encoder, known = checkpoint.get("encoder"), checkpoint["hyper_parameters"]
    if not isinstance(encoder, Mapping) or not isinstance(encoder.get("arguments"), Mapping):
        kind = checkpoint.get("module")
        raise ValueError(f"{path} holds no Vision Transformer: {kind}.load_from_checkpoint reads it")
    prefix, arguments = str(encoder.get("prefix")), encoder["arguments"]
    tensors = checkpoint["state_dict"].items()
    state = {name.removeprefix(prefix): tensor for name, tensor in tensors if name.startswith(prefix)}
    given = {name: known[name] for name in ("mean", "std", "class_names") if known.get(name) is not None}
    about = encoder.get("about")
    given |= {"thresholds": about["thresholds"]} if isinstance(about, Mapping) and "thresholds" in about else {}
    of_data = checkpoint.get("data")
    of_data = of_data.get("init_args") if isinstance(of_data, dict) else None
    crop = {"crop_ratio": of_data["crop_ratio"]} if isinstance(of_data, dict) and "crop_ratio" in of_data else {}
    return {name: value for name, value in arguments.items() if name in DEFAULTS}, state, given | crop


def _check_described(arguments: Arguments, state: State, path: Path) -> None:
    """Check that the tensors of a file of this package fit its description."""
    depth = arguments.get("depth", DEFAULTS["depth"])
    blocks = len({name.split(".")[1] for name in state if name.startswith("blocks.")})
    if depth != blocks:
        raise ValueError(f"{path} describes a model of depth {depth}, and holds {blocks} blocks: it is damaged")
    # On the meta device: an untrusted file may describe a model of any size.
    check_same_tensors(_built(arguments, str(path), "meta"), state, path, "it is damaged")
    check_numbers(state, path)


def _built(arguments: Arguments, origin: str, device: str = "cpu") -> VisionTransformer:
    try:
        with torch.device(device):
            return VisionTransformer(**arguments)
    except (TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{origin} describes a model that cannot be built: {error}") from error
