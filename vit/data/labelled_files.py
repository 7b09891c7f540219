"""Labelled image files: what the data sets that read them have in common."""

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from vit.data.image_files import ImageFiles, stored_size
from vit.data.module import ImageDataModule, ImageSet, Stage
from vit.data.split import stratified_split
from vit.data.survey import Survey, survey
from vit.support.checks import check_positive_share, check_probability, check_share, check_size

# The files of a split, and the class number, the row of 0 and 1, or the row of tokens of each.
LabelledPaths = tuple[list[Path], list[int] | list[list[int]] | list[list[float]]]


class LabelledFiles(ImageDataModule, ABC):
    """Labelled image files. A subclass finds the files of each split.

    Args:
        root: The folder.
        image_size: Rows and columns of the model's input, or one number for both, to which images are scaled and
            cropped. None is the size of the images if all have the same, at most 64 pixels, else a suitable square.
        crop_ratio: Share of each side of a scaled image that validation and test images keep, their centre, in (0, 1],
            such as 0.875. Training images are cropped alike, or at random by crop_scale.
        test_fraction: Share of the images of each class that is held out for test if the data name no splits.
        skip_damaged: Whether files that cannot be read are left out and named; else they are an error at the start.
        mean: Mean of each channel, in [0, 1], which the model subtracts from images; None takes that of ImageNet, or
            of the weights in --model.init_from. For another number of channels, each gets the average.
        std: Standard deviation of each channel, by which the model then divides; None as for mean.
        kwargs: Batches, splits and augmentation, as for every data module.

    Raises:
        ValueError: If an argument is out of its range, or there are no such files.
    """

    stretch = False  # whether images are scaled to the size whatever their aspect ratio
    known_classes: list[str] | None = None  # those of a trained model

    def __init__(
        self,
        root: str,
        image_size: int | tuple[int, int] | None = None,
        crop_ratio: float = 1.0,
        test_fraction: float = 0.2,
        skip_damaged: bool = False,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if image_size is not None:
            check_size("image_size", image_size)
        check_positive_share("crop_ratio", crop_ratio, "1 keeps whole images")
        check_share("test_fraction", test_fraction, "0.2 holds out one image in five")
        for number in mean or ():
            check_probability("mean", number, "it is of pixels from 0 to 1")
        for number in std or ():
            check_positive_share("std", number, "it is of pixels from 0 to 1")
        self.root = Path(root)
        self.crop_ratio = crop_ratio
        self.test_fraction = test_fraction
        self.skip_damaged = skip_damaged
        self.splits = self.find_splits()
        self.num_classes = len(self.class_names)
        found = survey([path for paths, _ in self.splits.values() for path in paths])
        self.in_channels = found.in_channels
        if image_size is None:
            self.image_size = self.choose_size(found)
        else:
            self.image_size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
        # Not the statistics of the images themselves, which would differ between the splits: the first linear layer can
        # learn any other scale.
        self.mean = _per_channel(mean or [0.485, 0.456, 0.406], self.in_channels)
        self.std = _per_channel(std or [0.229, 0.224, 0.225], self.in_channels)

    @abstractmethod
    def find_splits(self) -> dict[Stage, LabelledPaths]:
        """Return the files and labels of each split, and set ``class_names``; without splits, all files are "train"."""

    def choose_size(self, found: Survey) -> tuple[int, int]:
        """Return rows and columns of the model's input, if no argument names them."""
        if set(found.sizes) != {found.image_size}:
            tell(f"image_size {found.image_size}: {found}; --data.image_size overrules")
        return found.image_size

    @property
    def stored_size(self) -> tuple[int, int]:
        """Rows and columns of the images before they are cropped to ``image_size``."""
        return stored_size(self.image_size, self.crop_ratio)

    @property
    def has_validation(self) -> bool:
        """Whether the data name validation images, or some are held out."""
        return "val" in self.splits or super().has_validation

    def prepare_data(self) -> None:
        """Decode in one process if several train; the others read its cache."""
        if self.trainer is not None and self.trainer.world_size > 1:
            self.load_sets()

    def setup(self, stage: str) -> None:
        """Load the splits, and tell which classes are missing in some; one without training images is a ValueError.

        A test of a trained model may miss any of its classes.
        """
        if self.sets:
            return
        if stage == "fit" and "train" not in self.splits:
            raise ValueError(f"{self.root} has no folder train, and a training needs one: add it, or run test instead")
        super().setup(stage)
        is_part = self.known_classes is not None and stage != "fit"
        if is_part and set(self.splits) == {"train"} and self._shows_a_part(self.sets["train"].labels):
            count = len(self.sets["train"].labels)
            tell(
                f"{self.root} names no test images, and has a part of the classes: all {count:,} images are evaluated, "
                "also those that the model was trained on, if there are some"
            )
        for split, part in self.sets.items() if self.num_classes and not is_part else ():
            several = part.labels.ndim > 1
            counts = part.labels.sum(dim=0) if several else part.labels.bincount(minlength=self.num_classes)
            missing = ", ".join(name for name, count in zip(self.class_names, counts, strict=True) if count == 0)
            if missing and split == "train":
                raise ValueError(f"no readable training image of {missing}: add images, or delete the class")
            if missing:
                tell(f"no {split} image of {missing}: add images, or its accuracy stays unknown")

    def load_sets(self) -> dict[Stage, ImageSet]:
        """Return the splits; test images are held out of the training images if the data name no splits."""
        total = sum(len(paths) for paths, _ in self.splits.values())
        sets = {}
        for stage, (paths, labels) in self.splits.items():
            files = ImageFiles(paths, labels, self.stored_size, self.in_channels, stretch=self.stretch)
            part = sets[stage] = self.decode_or_stream(files, total, skip_damaged=self.skip_damaged)
            part.files = [name.removeprefix(f"{self.root}{os.sep}") for name in part.files]
        if set(sets) == {"train"} and self._shows_a_part(sets["train"].labels):
            # Held out of fewer classes, images would not be those that the training held out.
            return dict.fromkeys(("train", "val", "test"), sets["train"])
        if set(sets) == {"train"} and self.test_fraction > 0:
            # Of a class of two images, the second one is for validation.
            train, test = stratified_split(sets["train"].labels, self.test_fraction, keep=2 if self.val_fraction else 1)
            if len(test) == 0:
                raise ValueError(
                    f"test_fraction ({self.test_fraction}) of {len(train)} images holds out none: add images, or set 0"
                )
            sets = {"train": sets["train"].subset(train), "test": sets["train"].subset(test)}
        return sets

    def _shows_a_part(self, labels: Tensor) -> bool:
        """Return whether the images are of a part of the classes that a trained model knows."""
        return self.known_classes is not None and labels.ndim == 1 and len(labels.unique()) < self.num_classes


@rank_zero_only
def tell(line: str) -> None:
    """Print a line, in the first of several processes."""
    print(line, flush=True)


def _per_channel(numbers: list[float], channels: int) -> list[float]:
    """Return a number for each channel: those given, or for another number of channels their average."""
    return list(numbers) if len(numbers) == channels else [sum(numbers) / len(numbers)] * channels
