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
