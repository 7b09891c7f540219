"""Trees of image files: class folders for training, or unsorted images for prediction."""

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from vit.data.files import IMAGE_SUFFIXES, UNREADABLE, ImageFiles, collate_readable, find_files, upright
from vit.data.module import ImageDataModule, ImageSet, Stage
from vit.data.split import stratified_split

# Usual folder names of the splits, and the split of each.
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
GREY_MODES = {"1", "L", "I", "I;16", "F", "LA"}


class ImageFolder(ImageDataModule):
    """Images in one folder per class.

    The layout is ``root/train/CLASS/...`` beside ``root/val/CLASS/...``, ``root/test/CLASS/...`` or both, or a single
    tree ``root/CLASS/...``, which is split. Missing validation images are held out of the training images.

    Args:
        root: The folder.
        image_size: Rows and columns that every image is scaled and cropped to, or one number for both; None for the
            size of the first image.
        test_fraction: Share of the images of each class held out for test, if there is a single tree.
        kwargs: Batches, splits and augmentation, as for every data module.

    Raises:
        ValueError: If there are no class folders, or their names differ between the splits.
    """

    def __init__(
        self, root: str, image_size: int | tuple[int, int] | None = None, test_fraction: float = 0.2, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.root = Path(root)
        self.test_fraction = test_fraction
        self.files = _class_folders(self.root)
        self.class_names = sorted(next(iter(self.files.values())))
        self.num_classes = len(self.class_names)
        first = next(path for paths in self.files["train"].values() for path in paths)
        size, self.in_channels = _size_and_channels(first)
        if image_size is not None:
            size = (image_size, image_size) if isinstance(image_size, int) else image_size
        self.image_size = size
        # The statistics of ImageNet, and their means for grey: the first linear layer can learn any other scale, and
        # the statistics of the images themselves would differ between the splits.
        self.mean = [0.485, 0.456, 0.406] if self.in_channels == 3 else [0.449]
        self.std = [0.229, 0.224, 0.225] if self.in_channels == 3 else [0.226]

    @property
    def has_validation(self) -> bool:
        """Whether there is a folder of validation images, or some are held out."""
        return "val" in self.files or super().has_validation

    def prepare_data(self) -> None:
        """Decode in one process if several train; the others read its cache."""
        if self.trainer is not None and self.trainer.world_size > 1:
            self.load_sets()

    def load_sets(self) -> dict[Stage, ImageSet]:
        """Return the splits that have a folder; a single tree is split into training and test images."""
        total = sum(len(paths) for split in self.files.values() for paths in split.values())
        sets = {stage: self._image_set(split, total) for stage, split in self.files.items()}
        if set(sets) == {"train"} and self.test_fraction != 0:
            train, test = stratified_split(sets["train"].labels, self.test_fraction)
            if len(test) == 0:
                raise ValueError(
                    f"test_fraction ({self.test_fraction}) of {len(train)} images holds out none: make it larger, or 0"
                )
            sets = {"train": sets["train"].subset(train), "test": sets["train"].subset(test)}
        return sets

    def _image_set(self, split: dict[str, list[Path]], total: int) -> ImageSet:
        paths = [path for name in self.class_names for path in split[name]]
        labels = [label for label, name in enumerate(self.class_names) for _ in split[name]]
        return self.decode_or_stream(ImageFiles(paths, labels, self.image_size, self.in_channels), total)


def _class_folders(root: Path) -> dict[Stage, dict[str, list[Path]]]:
    """Return the files of each class of each split; a single tree is "train"."""
    if not root.is_dir():
        raise ValueError(f"no folder {root}: name the data by --data.root, or try --data Digits, which needs none")
    stages: tuple[Stage, ...] = ("train", "val", "test")
    for path in root.iterdir():
        stage = SPLIT_NAMES.get(path.name.lower(), path.name)
        if path.is_dir() and stage != path.name:
            raise ValueError(f"{path} looks like a split and would be taken for a class: rename it to {stage}")
    if (root / "train").is_dir():
        splits = {stage: _classes(root / stage) for stage in stages if (root / stage).is_dir()}
    else:
        splits = {"train": _classes(root)}
    names = set(splits["train"])
    if not names:
        raise ValueError(f"no class folders with images in {root}: it needs CLASS/image.jpg or train/CLASS/image.jpg")
    if len(names) == 1:
        raise ValueError(
            f"the images in {root} are of one class ({names.pop()}): name the folder that holds the class folders"
        )
    for stage, classes in splits.items():
        if differing := sorted(names ^ set(classes)):
            raise ValueError(
                f"classes differ between {root / 'train'} and {root / stage}: only one of them has "
                f"{', '.join(differing)}; give both the same class folders"
            )
    return splits


def _classes(folder: Path) -> dict[str, list[Path]]:
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    found = {
        path.name: [file for file in find_files(path) if file.suffix.lower() in IMAGE_SUFFIXES] for path in folders
    }
    return {name: files for name, files in found.items() if files}


def _size_and_channels(path: Path) -> tuple[tuple[int, int], int]:
    try:
        with Image.open(path) as file:
            channels = 1 if file.mode in GREY_MODES else 3
            image = upright(file)
            return (image.height, image.width), channels
    except UNREADABLE as error:
        raise ValueError(f"cannot read image {path}: {error}") from None


class UnsortedImages(ImageDataModule):
    """Image files without labels, for prediction; all arguments but ``root`` come from the trained model.

    Args:
        root: A folder of image files, nested or flat, or one file.
        image_size: Rows and columns of the model's input.
        in_channels: Channels of the model's input: 3 for colour, 1 for grey.
        class_names: Names of the classes, in the order of the logits.
        mean: Mean of each channel in the model's training, in [0, 1].
        std: Standard deviation of each channel in the model's training, in [0, 1].
        kwargs: Batches, as for every data module.

    Raises:
        ValueError: If there are no files.
    """

    def __init__(
        self,
        root: str,
        image_size: tuple[int, int],
        in_channels: int,
        class_names: list[str],
        mean: list[float],
        std: list[float],
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.root = Path(root)
        self.image_size = image_size
        self.in_channels = in_channels
        self.class_names = class_names
        self.num_classes = len(class_names)
        self.mean = mean
        self.std = std
        if not self.root.exists():
            raise ValueError(f"no images at {self.root}: name a folder of image files by --data.root")
        paths = find_files(self.root) if self.root.is_dir() else [self.root]
        if not paths:
            raise ValueError(f"no files in {self.root}: name a folder of image files by --data.root")
        self.files = ImageFiles(paths, [0] * len(paths), image_size, in_channels)

    def setup(self, stage: str) -> None:
        """Do nothing: files are decoded on access."""

    def predict_dataloader(self) -> DataLoader:
        """Return batches of (images, their paths, error messages of unreadable files)."""
        return DataLoader(
            self.files,
            batch_size=self.batch_size,
            num_workers=self.num_workers if len(self.files) > self.batch_size else 0,
            collate_fn=self._collate,
        )

    def _collate(self, items: list[tuple[Tensor | str, int, int]]) -> tuple[Tensor, list[str], list[str]]:
        decoded = collate_readable(items)
        files = [str(self.files.paths[index]) for index in decoded.indices.tolist()]
        images = decoded.images if files else torch.empty(0, self.in_channels, *self.image_size, dtype=torch.uint8)
        return images, files, decoded.unreadable
