"""Data: data modules, the loaders of whole batches, and batched augmentation.

Each name is imported on first use, so that reading an image file does not need Lightning.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit.data.cifar import CIFAR10, CIFAR100
    from vit.data.crowded import CrowdedDigits
    from vit.data.digits import Digits
    from vit.data.folder import ImageFolder
    from vit.data.image_strings import ImageStrings
    from vit.data.mark_pairs import MarkPairs
    from vit.data.module import ImageDataModule
    from vit.data.planted import PlantedDigits
    from vit.data.shards import Shards
    from vit.data.strings import DigitStrings
    from vit.data.table import ImageTable
    from vit.data.unsorted import UnsortedImages

    DATA_SETS: dict[str, type[ImageDataModule]]

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "CrowdedDigits",
    "DigitStrings",
    "Digits",
    "ImageDataModule",
    "ImageFolder",
    "ImageStrings",
    "ImageTable",
    "MarkPairs",
    "PlantedDigits",
    "Shards",
    "UnsortedImages",
]
MODULES = {
    "CIFAR10": "cifar",
    "CIFAR100": "cifar",
    "CrowdedDigits": "crowded",
    "DigitStrings": "strings",
    "Digits": "digits",
    "ImageDataModule": "module",
    "ImageFolder": "folder",
    "ImageStrings": "image_strings",
    "ImageTable": "table",
    "MarkPairs": "mark_pairs",
    "PlantedDigits": "planted",
    "Shards": "shards",
    "UnsortedImages": "unsorted",
}


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return getattr(import_module(f"vit.data.{MODULES[name]}"), name)
    if name == "DATA_SETS":  # the data sets that a model can be trained on, by name
        names = [each for each in __all__ if each not in ("ImageDataModule", "UnsortedImages")]
        return globals().setdefault(name, {each: __getattr__(each) for each in names})
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
