"""The fingerprint of a file of predictions: only the same weights, images and settings go on in it."""

import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning import LightningDataModule

OF_IMAGES = ("image_size", "centre", "stretch", "in_channels", "max_pixels")  # how files become images


def fingerprint_of_predictions(
    weights: Path, data: LightningDataModule, how: Sequence[Any], settings: Mapping[str, Any]
) -> str:
    """Return eight letters that differ if the weights, the images or the settings of predictions differ.

    Args:
        weights: A file of weights, or the folder of a distributed checkpoint.
        data: The data module of the images.
        how: Settings of the computation, such as its precision.
        settings: Hyper-parameters of the model.
    """
    if weights.is_file():
        of_weights: Any = zlib.crc32(weights.read_bytes())
    else:  # a distributed checkpoint, which a training that goes on may have replaced
        of_weights = weights, sorted((str(file), file.stat().st_mtime_ns) for file in weights.rglob("*"))
    root = getattr(data, "root", None)  # rows name files by it, and the same name may be another folder elsewhere
    about = [root, root.resolve() if isinstance(root, Path) else None]
    about += [*(getattr(getattr(data, "files", None), name, None) for name in OF_IMAGES)]
    predicted = f"{of_weights} {about} {[*how]} {dict(settings)}"
    return f"{zlib.crc32(os.fsencode(predicted)):08x}"
