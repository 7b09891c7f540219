"""Builds the model that a file, a folder, a state dict or a module describes, and fills in its weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.model.vision_transformer import VisionTransformer
from vit.weights.architecture import DEFAULTS, build
from vit.weights.data_description import describe_data
from vit.weights.foreign import GIVEN_BY_CALLER, read_foreign
from vit.weights.foreign_readers import read_folder, read_module
from vit.weights.foreign_source import Source, find_tensors
from vit.weights.load_report import LoadedWeights, LoadReport
from vit.weights.matching import check_same_tensors
from vit.weights.own_files import is_own_file, read_described, read_own_file, read_own_model, read_state_dict
from vit.weights.surgery import MAY_DIFFER, fit_to_model
from vit.weights.tensor_files import is_distributed, read_file
from vit.weights.timm_source import read_timm

PACKAGED = ("cifar10",)  # each a safetensors file and a model card beside this file

OF_TIMM = "timm:"  # before the name of a model that timm builds

WeightsSource = str | Path | Mapping[str, Tensor] | nn.Module


def load(source: WeightsSource, *, strict: bool = True, **changes: Any) -> VisionTransformer:
    """Return a trained model, in eval mode.

    ``source`` is one of:

    - a training checkpoint (.ckpt, a file or a distributed folder), or a file of ``vit.save`` (.safetensors);
    - the name "cifar10" of the model that comes with the package (``./cifar10`` is a file of that name);
    - the weights of another library: of timm, transformers, torchvision, Google (.npz), OpenAI, or the authors of
      DINOv2, as a file, a folder with a config.json, a state dict or a live module;
    - "timm:NAME", a pretrained model that timm builds, downloads and keeps in its cache; "timm:NAME=FILE" takes the
      weights of that model from a file.

    If a Vision Transformer is a part of the trained net, that part is returned. No code in a file is executed.

    ``changes`` are arguments of ``VisionTransformer``. If they differ from those of the trained model, its weights are
    fitted: positions and patches are resized, tokens and heads are dropped or new. ``model.load_report`` says what
    became of each tensor.

    The model takes normalised images: ``model.pretrained_cfg``, which has timm's name, holds the ``mean`` and ``std``
    for this, the ``input_size`` (channels, rows, columns), the ``class_names``, and the ``crop_ratio`` of its data.

    >>> model = load("cifar10", num_classes=3, image_size=48)
    >>> print(model.load_report)
    weights of cifar10 (vit): 77 as they are, resized: pos_embed, new: head.weight, head.bias

    Args:
        source: What holds the weights.
        strict: Whether it is an error if weights of another library have a tensor that the model has no place for, or
            lack one of the model. If False, the tensor is dropped, or stays as initialised.
        changes: Arguments of the model that differ from those of the trained one, or that its tensors do not tell.
            Other libraries keep ``num_heads`` outside of the weights, so a file of weights alone needs it here, unless
            all its tensors have the shapes of a published model.

    Raises:
        ValueError: If the source holds no Vision Transformer, is damaged or carries code, or a change does not fit.
    """
    unknown = [name for name in changes if name not in DEFAULTS]
    if unknown:
        raise ValueError(f"VisionTransformer has no argument {unknown[0]!r}: it takes {', '.join(DEFAULTS)}")
    trained = read_model(source, changes, strict)
    if not trained.is_whole:
        raise ValueError(
            f"{trained.report.origin} holds no Vision Transformer: ImageCompleter.load_from_checkpoint reads it, and "
            "--model.init_from takes its blocks"
        )
    arguments, report, state = trained.arguments | changes, trained.report, trained.state
    precision = torch.promote_types(state["patch_embed.proj.weight"].dtype, torch.float32)
    model = build(arguments, report.origin).to(precision)
    own = model.state_dict()
    state = state | {name: own[name] for name in report.fresh if name in own}
    if any(arguments[name] != value for name, value in trained.arguments.items()):
        same_classes = arguments["num_classes"] == trained.arguments["num_classes"]
        # Positions are resized as the caller asks, or else as the trained model does.
        asked = {name: changes[name] for name in ("pos_embed_interpolation",) if name in changes}
        state = fit_to_model(state, trained.arguments | asked, model, report, same_classes)
        check_same_tensors(model, state, report.origin, "change fewer arguments")
    model.load_state_dict(state)
    model.pretrained_cfg = describe_data(model, trained)
    model.load_report = report
    return model.eval()


def start_from(model: VisionTransformer, source: WeightsSource, class_names: Sequence[str] | None = None) -> LoadReport:
    """Copy trained weights into a model; return what was changed and what stays the model's own.

    Patch embedding and positions are resized to the model's patches and images. The head stays the model's own if the
    classes differ in number or, if both are known, in name. So do rotary positions, positions of another kind, and
    tokens that the trained model lacks. Of an ``ImageCompleter``, which embeds colours, the blocks and the last norm
    are taken.

    >>> model = VisionTransformer(image_size=96, patch_size=8, embed_dim=128, depth=6, num_heads=4, mlp_ratio=2)
    >>> print(start_from(model, "cifar10"))
    weights of cifar10 (vit): 78 as they are, resized: patch_embed.proj.weight, pos_embed

    Args:
        model: The model whose weights are replaced.
        source: What ``vit.load`` takes: a name, a file, a folder, a state dict or a module.
        class_names: Names of the model's classes, in the order of the logits; None if they have none.

    Raises:
        ValueError: If the source holds no model, or one of another architecture.
    """
    wanted = {name: model.config[name] for name in ("num_heads", "image_size", "pos_embed")}
    # If an argument of the model is not the default, it decides what the tensors leave open.
    wanted |= {name: model.config[name] for name in GIVEN_BY_CALLER if model.config[name] != DEFAULTS[name]}
    trained = read_model(source, wanted)
    if not trained.is_whole:
        trained = _embedded_by(model, trained)
    theirs = trained.data.get("class_names")
    same_classes = not theirs or not class_names or list(theirs) == list(class_names)
    state = fit_to_model(trained.state, trained.arguments, model, trained.report, same_classes)
    check_same_tensors(model, state, trained.report.origin, "make the arguments equal, and the grid as well")
    model.load_state_dict(state)
    return trained.report


def read_model(source: WeightsSource, wanted: Mapping[str, Any], strict: bool = True) -> LoadedWeights:
    """Return trained tensors under our names, checked against the arguments of their model.

    Args:
        source: What ``load`` takes.
        wanted: Arguments of the model that is wanted; those that tensors do not tell are taken from here.
        strict: Whether a tensor of another library without a place, or a missing one, is an error.

    Raises:
        ValueError: If the source holds no Vision Transformer, is damaged or carries code.
    """
    if isinstance(source, VisionTransformer):
        return read_own_model(source)
    if isinstance(source, nn.Module):
        return read_foreign(read_module(source), wanted, strict)
    if isinstance(source, Mapping):
        return _read_tensors(source, "the state dict", wanted, strict)
    if is_name_of_timm(source):
        return read_foreign(read_timm(str(source).removeprefix(OF_TIMM), str(source)), wanted, strict)
    path = Path(__file__).with_name(f"{source}.safetensors") if source in PACKAGED else Path(source)
    if path.is_dir() and path.suffix != ".ckpt" and not is_distributed(path):
        folder = read_folder(path)
        if folder.config is not None:
            return read_described(folder.state, folder.config, folder.data, folder.origin)
        return read_foreign(folder, wanted, strict)
    contents, metadata = read_file(path)
    if is_own_file(contents, metadata, path):
        return read_own_file(contents, metadata, path, str(source))
    return _read_tensors(contents, str(path), wanted, strict)


def _embedded_by(model: VisionTransformer, blocks: LoadedWeights) -> LoadedWeights:
    """Return trained blocks with the other tensors of a model, such as its embedding."""
    taken = ("blocks.", "norm.", "fc_norm.")
    own = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(taken)}
    arguments = DEFAULTS | {name: model.config[name] for name in MAY_DIFFER} | blocks.arguments
    report = replace(blocks.report, fresh=list(own))
    return LoadedWeights(own | blocks.state, arguments, {}, report)


def is_name_of_timm(source: Any) -> bool:
    """Return whether a source is the name of a model that timm builds, such as "timm:vit_tiny_patch16_224"."""
    return str(source).startswith(OF_TIMM)


def _read_tensors(contents: Any, origin: str, wanted: Mapping[str, Any], strict: bool) -> LoadedWeights:
    """Return a model of this package if a config comes with the tensors, else one of another library."""
    state = find_tensors(contents, origin)
    return read_state_dict(contents, state, origin) or read_foreign(Source(state, origin), wanted, strict)
