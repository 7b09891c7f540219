"""The base of the data sets that read labelled image files."""

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from numbers import Integral
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset

from vit.data.formats import MAX_PIXELS
from vit.data.identical import Duplicates, Identical, find_identical
from vit.data.image_files import ImageFiles, stored_size
from vit.data.inventory import Inventory, describe_identical
from vit.data.module import ImageDataModule, ImageSet, Stage
from vit.data.shard_files import Members
from vit.data.survey import Survey, survey
from vit.support.checks import (
    check_choice,
    check_crop_ratio,
    check_positive_int,
    check_positive_share,
    check_probability,
    check_share,
    check_size,
)
from vit.support.first_process import print_once
from vit.support.printable import list_names

COLOURS = {1: "grey", 3: "colour"}  # of a number of channels
# The files of a split, and the class number, the row of 0 and 1, or the row of tokens of each.
LabelledPaths = tuple[list[Path] | Members, list[int] | np.ndarray | list[list[int]] | list[list[float]]]


class LabelledFiles(ImageDataModule, ABC):
    """Labelled image files. A subclass finds the files of each split.

    Args:
        root: The folder.
        image_size: Rows and columns of the model's input, or one number for both, to which images are scaled and
            cropped. None is the size of the images if all have the same, at most 64 pixels, else a suitable square.
        crop_ratio: Share of each side that a centre crop keeps of validation and test images, in (0, 1], such as 0.875.
            Training images are cropped alike, or at random by crop_scale. None keeps whole images, unless weights
            without a run are evaluated: then it is theirs.
        test_fraction: Share of the images of each class that is held out for test if the data name no splits.
        skip_damaged: Whether files that cannot be read are left out and named; if not, they are an error at the start.
        duplicates: What is done about files with the same bytes: "warn" names them, "error" stops before the training,
            "drop" keeps one of each (if copies are in several splits, that of test, else that of val; none if they are
            in several classes, as their class is unknown).
        max_pixels: Most pixels of an image file; larger ones count as damaged, as a small file may claim to be huge.
        mean: Mean of each channel, in [0, 1], which the model subtracts from images; None takes that of ImageNet, or
            of the weights in --model.init_from. If the number of channels differs, each gets the average.
        std: Standard deviation of each channel, by which the model then divides; None as for mean.
        kwargs: Batches, splits and augmentation, as for every data module.

    Raises:
        ValueError: If an argument is out of its range, or there are no labelled image files.
    """

    stretch = False  # whether images are scaled to the size whatever their aspect ratio
    known_classes: list[str] | None = None  # those of a trained model

    def __init__(
        self,
        root: str,
        image_size: int | tuple[int, int] | None = None,
        crop_ratio: float | None = None,
        test_fraction: float = 0.2,
        skip_damaged: bool = False,
        duplicates: Duplicates = "warn",
        max_pixels: int = MAX_PIXELS,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if image_size is not None:
            check_size("image_size", image_size)
        self.crop_ratio = 1.0 if crop_ratio is None else crop_ratio
        check_crop_ratio(self.crop_ratio)
        check_share("test_fraction", test_fraction, "0.2 holds out one image in five")
        check_choice("duplicates", duplicates, get_args(Duplicates))
        check_positive_int("max_pixels", max_pixels, f"{MAX_PIXELS} is the limit of Pillow")
        for number in mean or ():
            check_probability("mean", number, "it is of pixels from 0 to 1")
        for number in std or ():
            check_positive_share("std", number, "it is of pixels from 0 to 1")
        if not root:  # Path("") is the current folder, and a variable of a shell may be empty
            raise ValueError(f"root ({root!r}) is empty: name a folder of images by --data.root; the current one is .")
        self.root = Path(root)
        self.test_fraction = test_fraction
        self.skip_damaged = skip_damaged
        self.max_pixels = max_pixels
        self.not_read: dict[str, list[Path]] = {}  # what ``find_splits`` leaves out, by reason
        self.groups: dict[str, str] = {}  # of each file, by its path below the root
        self.splits = self.find_splits()
        self.num_classes = len(self.class_names)
        for alike in _look_alike(self.class_names):
            names = " and ".join(map(repr, alike))
            print_once(f"note: {names} are {len(alike)} classes here: if they are one, give them the same name")
        self.unreadable: dict[Path, str] = {}  # filled by ``load_sets``, as are the notes
        self.notes: dict[Path, list[str]] = {}
        self.identical: list[str] = []  # lines about identical images
        self._look_for_identical(duplicates)
        found = self.found = survey(ConcatDataset([paths for paths, _ in self.splits.values()]), max_pixels)
        self.in_channels = found.in_channels
        if image_size is None:
            self.image_size = self.choose_size(found)
        else:
            rows, columns = (image_size, image_size) if isinstance(image_size, Integral) else image_size
            self.image_size = int(rows), int(columns)
        # We do not take the statistics of the images themselves, which differ between splits: the first linear layer
        # can learn any other scale.
        self.given = mean or [0.485, 0.456, 0.406], std or [0.229, 0.224, 0.225]
        self.read_as(self.in_channels)

    def read_as(self, in_channels: int) -> None:
        """Read images in the channels that a trained model takes: 3 for colour, 1 for grey."""
        if in_channels != self.in_channels:
            print_once(f"images of {self.root} are read in {COLOURS[in_channels]}, as the model takes them")
        self.in_channels = in_channels
        self.mean, self.std = (_per_channel(numbers, in_channels) for numbers in self.given)

    def _look_for_identical(self, duplicates: Duplicates) -> None:
        """Name identical images, or leave them out, or raise a ValueError, as the option says."""
        found = self.find_identical()
        are_split = "test" not in self.splits and self.test_fraction > 0
        are_split |= "val" not in self.splits and self.val_fraction > 0
        lines = describe_identical(found, self.root, are_split=are_split and duplicates != "drop")
        if lines and duplicates == "error":
            raise ValueError(f"{'; '.join(lines)}: delete the copies, or leave them out by --data.duplicates drop")
        if lines and duplicates == "warn":
            self.identical = [*lines, "  --data.duplicates drop leaves copies out"]
        if lines and duplicates == "drop":
            self.identical = lines
            dropped = found.dropped
            self.not_read["copies of other images, or of two classes"] = [path for _, path in sorted(dropped)]
            for stage, (paths, labels) in self.splits.items():
                kept = [index for index, path in enumerate(paths) if (stage, path) not in dropped]
                if not kept:
                    raise ValueError(f"{'; '.join(lines)}: --data.duplicates drop leaves no {stage} image")
                self.splits[stage] = [paths[index] for index in kept], [labels[index] for index in kept]

    def find_identical(self) -> Identical:
        """Return the groups of identical images."""
        return find_identical(self.splits)

    @abstractmethod
    def find_splits(self) -> dict[Stage, LabelledPaths]:
        """Return the files and labels of each split, and set ``class_names``; without splits, all files are "train".

        It also sets ``groups``, the group of each file, if the data have groups.
        """

    def choose_size(self, found: Survey) -> tuple[int, int]:
        """Return rows and columns of the model's input, if no argument names them."""
        if set(found.sizes) != {found.image_size}:
            print_once(f"image_size {found.image_size}: {found}; --data.image_size overrules")
        return found.image_size

    @property
    def stored_size(self) -> tuple[int, int]:
        """Rows and columns of the images before they are cropped to ``image_size``."""
        return stored_size(self.image_size, self.crop_ratio)

    @property
    def has_validation(self) -> bool:
        """Whether the data name validation images, or some are held out."""
        return ("val" in self.splits and self.folds is None) or super().has_validation

    def prepare_data(self) -> None:
        """Decode in one process if several train; the others read its cache."""
        if self.trainer is not None and self.trainer.world_size > 1:
            self.load_sets()

    def setup(self, stage: str) -> None:
        """Load the splits and print their inventory; a class without training images is a ValueError.

        If a trained model is tested, images of any of its classes may be missing.
        """
        if self.sets:
            return
        self._check_has_training(stage)
        super().setup(stage)
        evaluates_a_model = self.known_classes is not None and stage != "fit"
        is_unsplit = evaluates_a_model and set(self.splits) == {"train"}
        takes_all = is_unsplit and self._shows_a_part(self.sets["train"].labels)
        if takes_all:
            split: Stage = "val" if stage == "validate" else "test"
            self.sets = {split: self.sets[split]}
        self.inventory = self._take_inventory()
        print_once(str(self.inventory))
        if is_unsplit:
            self._print_what_is_tested(stage, takes_all)
        if not evaluates_a_model:
            self._check_every_class_has_images()

    def _check_has_training(self, stage: str) -> None:
        if stage == "fit" and "train" not in self.splits:
            raise ValueError(f"{self.root} has no folder train, and a training needs one: add it, or run test instead")
        if self.folds is not None and "train" not in self.splits:
            raise ValueError(
                f"folds ({self.folds}) are parts of the training images, and {self.root} has none: add "
                "--data.folds null --data.fold null"
            )

    def _print_what_is_tested(self, stage: str, takes_all: bool) -> None:
        """Print which images of a folder that is not split a trained model is evaluated on."""
        counts = {split: len(part.labels) for split, part in self.sets.items()}
        if takes_all:
            (count,) = counts.values()
            print_once(
                f"{self.root} names no test images, and has a part of the classes: all {count:,} images are evaluated, "
                "also those that the model was trained on, if there are some"
            )
        elif stage == "test" and "test" in counts:
            print_once(
                f"{self.root} names no test images: {counts['test']:,} of {sum(counts.values()):,} are tested, held "
                "out as in the training; to test all, put them into test/, or name them in the column split of a table"
            )

    def _check_every_class_has_images(self) -> None:
        """Refuse a class without training images, and print a line for one without others."""
        if not self.num_classes:
            return
        for split, part in self.sets.items():
            counts = _count(part.labels, self.num_classes)
            missing = list_names([name for name, count in zip(self.class_names, counts, strict=True) if count == 0])
            if missing and split == "train":
                raise ValueError(f"no readable training image of {missing}: add images, or delete the class")
            if missing:
                print_once(f"no {split} image of {missing}: add images, or its accuracy stays unknown")

    def _take_inventory(self) -> Inventory:
        damaged = {"damaged": [*self.unreadable]} if self.unreadable else {}
        by_note: dict[str, list[Path]] = {}
        for path, notes in self.notes.items():
            for note in notes:
                by_note.setdefault(note, []).append(path)
        if self.found.coloured and self.in_channels == 1:
            looked_at = f"of {len(self.found.sizes):,} that were looked at"
            by_note[f"in colour, and read in grey as nearly all are, {looked_at}"] = self.found.coloured
        labels = {stage: self.sets[stage].labels for stage in get_args(Stage) if stage in self.sets}
        return Inventory(
            self.root,
            {stage: _count(of_stage, self.num_classes) for stage, of_stage in labels.items()},
            self.class_names,
            self.not_read | damaged,
            by_note,
            self.identical,
            {stage: len(of_stage) for stage, of_stage in labels.items()},
        )

    def load_sets(self) -> dict[Stage, ImageSet]:
        """Return the splits; test images are held out of the training images if the data name no splits."""
        splits = dict(self.splits)
        if self.folds is not None and "val" in splits:  # folds are cut from them, too
            (paths, labels), (more, of_more) = splits["train"], splits.pop("val")
            splits["train"] = [*paths, *more], [*labels, *of_more]
        total = sum(len(paths) for paths, _ in splits.values())
        numbers = {name: number for number, name in enumerate(sorted(set(self.groups.values())))}
        prefix = str(self.root / "_").removesuffix("_")  # with one separator, also where the root is that of a disk
        sets = {}
        for stage, (paths, labels) in splits.items():
            files = ImageFiles(
                paths, labels, self.stored_size, self.in_channels, stretch=self.stretch, max_pixels=self.max_pixels
            )
            part = sets[stage] = self.decode_or_stream(files, total, skip_damaged=self.skip_damaged)
            self.unreadable |= files.unreadable
            self.notes |= files.notes
            if len(part.labels) == 0:
                raise ValueError(
                    f"cannot read any of the {len(paths):,} {stage} images of {self.root}, such as {paths[0]}: replace "
                    f"them, or leave {stage} out"
                )
            part.files = [name.removeprefix(prefix) for name in part.files]
            if self.groups:
                part.groups = torch.tensor([numbers[self.groups[name]] for name in part.files])
        if set(sets) == {"train"} and self._shows_a_part(sets["train"].labels):
            # If classes are missing, no split or fold would hold out the images that the training held out.
            self.folds = self.fold = None
            return dict.fromkeys(("train", "val", "test"), sets["train"])
        if set(sets) == {"train"} and self.test_fraction > 0 and self.folds is None:
            # A class of two images keeps one for training and one for validation.
            train, test = sets["train"].split(self.test_fraction, keep=2 if self.val_fraction else 1)
            if len(test.labels) == 0:
                raise ValueError(
                    f"test_fraction ({self.test_fraction}) of {train.counted} holds out none: add images, or set 0"
                )
            sets = {"train": train, "test": test}
        return sets

    def _shows_a_part(self, labels: Tensor) -> bool:
        """Return whether some classes that a trained model knows have no images."""
        return self.known_classes is not None and min(_count(labels, self.num_classes)) == 0


def _count(labels: Tensor, num_classes: int) -> list[int]:
    """Return the number of images of each class, or of all images if there are no classes."""
    if not num_classes:
        return [len(labels)]
    counts = labels.sum(dim=0) if labels.ndim > 1 else labels.bincount(minlength=num_classes)
    return [int(count) for count in counts]


def _look_alike(names: Sequence[str]) -> list[list[str]]:
    """Return groups of names that are the same number, or differ only in capitals, spaces or how Unicode writes them.

    >>> _look_alike(["Cat", "cat", "dog", "1", "01", "1.0"])
    [['Cat', 'cat'], ['1', '01', '1.0']]
    """
    alike: dict[str, list[str]] = {}
    for name in names:
        key = unicodedata.normalize("NFKC", name).casefold().strip()
        with suppress(ValueError):
            key = str(float(key))
        alike.setdefault(key, []).append(name)
    return [group for group in alike.values() if len(group) > 1]


def _per_channel(numbers: list[float], channels: int) -> list[float]:
    """Return a number for each channel: those given, or their average if the number of channels differs."""
    return list(numbers) if len(numbers) == channels else [sum(numbers) / len(numbers)] * channels
