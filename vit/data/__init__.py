"""Data: data modules, the loaders of whole batches, and batched augmentation."""

from vit.data.cifar import CIFAR10, CIFAR100
from vit.data.digits import Digits
from vit.data.folder import ImageFolder
from vit.data.image_strings import ImageStrings
from vit.data.module import ImageDataModule
from vit.data.planted import PlantedDigits
from vit.data.strings import DigitStrings
from vit.data.table import ImageTable
from vit.data.unsorted import UnsortedImages

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "DigitStrings",
    "Digits",
    "ImageDataModule",
    "ImageFolder",
    "ImageStrings",
    "ImageTable",
    "PlantedDigits",
    "UnsortedImages",
]
# What a model can be trained on, by name.
DATA_SETS: dict[str, type[ImageDataModule]] = {
    name: globals()[name] for name in __all__ if name not in ("ImageDataModule", "UnsortedImages")
}
