"""Reads what transformers tells of a model: the configs in its folder, or the config of a module."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from vit.weights.config_files import names_by_number, read_json
from vit.weights.foreign_source import Source, origin_of, source_of
from vit.weights.formats.format import State
from vit.weights.formats.transformers_config import MULTILABEL, arguments_in

RESAMPLED = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # by Pillow's numbers


def _read_classes(config: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return what a config of transformers tells of the classes: their names, and whether an image shows several."""
    several = config.get("problem_type") == MULTILABEL and isinstance(config.get("id2label"), dict)
    return _read_names(config, origin) | ({"thresholds": [0.5] * len(config["id2label"])} if several else {})


def _read_names(config: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return the class names in a config of transformers, unless they only number the classes."""
    names = config.get("id2label")
    if not isinstance(names, dict) or all(str(name).startswith("LABEL_") for name in names.values()):
        return {}
    if not all(str(number).isdecimal() for number in names):
        shown = ", ".join(map(str, names))[:80]
        raise ValueError(f"{origin} is damaged: id2label has names for {shown}")
    return {"class_names": names_by_number(names, f"id2label of {origin}")}


def _read_images(found: dict[str, Any], channels: int) -> dict[str, Any]:
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
    resample = found.get("resample")
    if found.get("do_resize", True) and isinstance(resample, int | float | str):
        data["interpolation"] = RESAMPLED.get(resample, resample)
    return data


def read_transformers_folder(folder: Path, config: dict[str, Any], state: State) -> Source:
    """Return the tensors of a folder with what its config.json and its preprocessor_config.json tell."""
    arguments = arguments_in(config)
    data = _read_classes(config, str(folder / "config.json"))
    preprocessor = folder / "preprocessor_config.json"
    found = read_json(preprocessor) if preprocessor.is_file() else {}
    return Source(state, str(folder), arguments, data | _read_images(found, config.get("num_channels", 3)))


def read_transformers_module(module: nn.Module) -> Source:
    """Return the tensors of a module with what its config tells."""
    config = module.config.to_dict()
    return source_of(module, arguments_in(config), _read_classes(config, origin_of(module)))
