"""What a trained model tells about its data, in ``pretrained_cfg``: normalisation, crop, names of classes."""

import math
from numbers import Real
from typing import Any

from vit.model.vision_transformer import VisionTransformer
from vit.support.checks import SMALLEST_CROP, is_crop_ratio
from vit.support.printable import printable
from vit.weights.load_report import LoadedWeights

LONGEST_NAME = 1000  # letters


def describe_data(model: VisionTransformer, weights: LoadedWeights) -> dict[str, Any]:
    """Return the ``pretrained_cfg`` of a model that took trained weights.

    What the weights do not tell is the default of ``ViTClassifier``. If the number of classes differs, they have no
    names. If the number of channels differs, each gets the average mean and std. Other entries of a file are dropped.

    Raises:
        ValueError: If the data of the weights does not fit their channels and the classes.
    """
    channels, classes, given = weights.arguments["in_channels"], model.num_classes, weights.data
    if classes != weights.arguments["num_classes"]:
        given = {name: value for name, value in given.items() if name not in ("class_names", "thresholds")}
    data = {"mean": [0.5] * channels, "std": [0.5] * channels, "class_names": None, "crop_ratio": 1.0}
    data |= {name: value for name, value in given.items() if name in {*data, "thresholds", "stretch"}}
    names, crop, thresholds = (data.get(name) for name in ("class_names", "crop_ratio", "thresholds"))
    right = {
        "mean": (_are_numbers(data["mean"], channels), f"one number for each of {channels} channels"),
        "std": (
            _are_numbers(data["std"], channels) and min(data["std"]) > 0,
            f"one number above 0 for each of {channels} channels",
        ),
        "class_names": (names is None or _are_names(names, classes), f"a printable name for each of {classes} classes"),
        "crop_ratio": (is_crop_ratio(crop), f"from {SMALLEST_CROP} to 1"),
        "thresholds": (thresholds is None or _are_numbers(thresholds, classes), f"one for each of {classes} classes"),
        "stretch": (isinstance(data.get("stretch", False), bool), "True or False"),
    }
    for name, (is_right, wanted) in right.items():
        if not is_right:
            raise ValueError(f"{weights.report.origin} is damaged: {name} ({repr(data[name])[:80]}) must be {wanted}")
    in_channels = model.patch_embed.in_channels
    if in_channels != channels:
        data |= {name: [sum(data[name]) / channels] * in_channels for name in ("mean", "std")}
    # timm reads the crop by the name crop_pct.
    return data | {"input_size": [in_channels, *model.patch_embed.image_size], "crop_pct": data["crop_ratio"]}


def _are_numbers(values: Any, count: int) -> bool:
    return _has_length(values, count) and all(isinstance(value, Real) and math.isfinite(value) for value in values)


def _are_names(values: Any, count: int) -> bool:
    return _has_length(values, count) and all(
        isinstance(value, str) and len(value) <= LONGEST_NAME and value == printable(value) for value in values
    )


def _has_length(values: Any, count: int) -> bool:
    return isinstance(values, list | tuple) and len(values) == count
