"""Image files in one folder per class, for training."""

from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from vit.data.image_files import ImageFiles, image_files_below, stored_size
from vit.data.module import ImageDataModule, ImageSet, Stage
from vit.data.split import stratified_split
from vit.data.survey import survey
from vit.support.checks import check_positive_share, check_probability, check_share, check_size

# Usual folder names of the splits, and the split of each.
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


LabelledFiles = tuple[list[Path], list[Any]]  # files, and the label of each


class ImageFolder(ImageDataModule):
    """Images in one folder per class.

    The layout is ``root/train/CLASS/...`` beside ``root/val/CLASS/...``, ``root/test/CLASS/...`` or both, or a single
    tree ``root/CLASS/...``, which is split. Missing validation images are held out of the training images. A class of
    two images has one for training and one for validation; a class of three has one for test, too.

    Args:
        root: The folder.
        image_size: Rows and columns of the model's input, to which every image is scaled and cropped, or one number for
            both; None for the size of the images if it is one size of at most 64 pixels, else for a square that suits
            them, at most 64 pixels wide.
        crop_ratio: Share of the side of a scaled image that validation and test images keep, their centre, in (0, 1],
            such as 0.875. Training images are cropped alike, or at random from the whole scaled image by crop_scale.
        test_fraction: Share of the images of each class held out for test, if there is a single tree.
        skip_damaged: Whether files that cannot be read are left out and named; else they are an error before the
            training.
        mean: Mean of each channel, in [0, 1], which the model subtracts from images; None takes that of ImageNet, or
            of the weights in --model.init_from. Images of another number of channels take its average for each.
        std: Standard deviation of each channel, by which the model then divides; None as for mean.
        kwargs: Batches, splits and augmentation, as for every data module.

    Raises:
        ValueError: If there are no class folders, their names differ between the splits, or an argument is out of its
            range.
    """

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
        self.class_names, self.files = self.find_files()
        self.num_classes = len(self.class_names)
        found = survey([path for paths, _ in self.files.values() for path in paths])
        self.in_channels = found.in_channels
        self.image_size = found.image_size
        if image_size is not None:
            self.image_size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
        elif set(found.sizes) != {self.image_size}:
            tell(f"image_size {self.image_size}: {found}; --data.image_size overrules")
        # Not the statistics of the images themselves, which would differ between the splits: the first linear layer can
        # learn any other scale.
        self.mean = _per_channel(mean or [0.485, 0.456, 0.406], self.in_channels)
        self.std = _per_channel(std or [0.229, 0.224, 0.225], self.in_channels)

    def find_files(self) -> tuple[list[str], dict[Stage, LabelledFiles]]:
        """Return the names of the classes, and the files of each split with the number of their class."""
        splits = _class_folders(self.root)
        names = sorted(splits["train"])
        paths = {stage: [path for name in names for path in split[name]] for stage, split in splits.items()}
        labels = {
            stage: [number for number, name in enumerate(names) for _ in split[name]] for stage, split in splits.items()
        }
        return names, {stage: (paths[stage], labels[stage]) for stage in splits}

    @property
    def stored_size(self) -> tuple[int, int]:
        """Rows and columns of the images before they are cropped to ``image_size``."""
        return stored_size(self.image_size, self.crop_ratio)

    @property
    def has_validation(self) -> bool:
        """Whether there is a folder of validation images, or some are held out."""
        return "val" in self.files or super().has_validation

    def prepare_data(self) -> None:
        """Decode in one process if several train; the others read its cache."""
        if self.trainer is not None and self.trainer.world_size > 1:
            self.load_sets()

    def setup(self, stage: str) -> None:
        """Load the splits, and tell which classes are missing in some.

        Raises:
            ValueError: If a class has no training image, or files are damaged.
        """
        if self.sets:
            return
        super().setup(stage)
        for split, part in self.sets.items():
            labels = part.labels
            counts = labels.sum(dim=0) if labels.ndim == 2 else labels.bincount(minlength=self.num_classes)
            without = counts.eq(0).nonzero()[:, 0].tolist()
            missing = ", ".join(self.class_names[number] for number in without)
            if missing and split == "train":
                raise ValueError(f"no readable training image of {missing}: add images, or leave out the class")
            if missing:
                tell(f"no {split} image of {missing}: add images, or its accuracy stays unknown")

    def load_sets(self) -> dict[Stage, ImageSet]:
        """Return the splits that have a folder; a single tree is split into training and test images."""
        total = sum(len(paths) for paths, _ in self.files.values())
        sets = {stage: self._image_set(*found, total) for stage, found in self.files.items()}
        if set(sets) == {"train"} and self.test_fraction > 0:
            # Of a class of two images, the second one is for validation.
            train, test = stratified_split(sets["train"].labels, self.test_fraction, keep=2 if self.val_fraction else 1)
            if len(test) == 0:
                raise ValueError(
                    f"test_fraction ({self.test_fraction}) of {len(train)} images holds out none: add images, or set 0"
                )
            sets = {"train": sets["train"].subset(train), "test": sets["train"].subset(test)}
        return sets

    def _image_set(self, paths: list[Path], labels: list[Any], total: int) -> ImageSet:
        files = ImageFiles(paths, labels, self.stored_size, self.in_channels)
        return self.decode_or_stream(files, total, skip_damaged=self.skip_damaged)


@rank_zero_only
def tell(line: str) -> None:
    """Print a line, in the first of several processes."""
    print(line, flush=True)


def _per_channel(numbers: list[float], channels: int) -> list[float]:
    """Return a number for each channel: the average of those given, if they are more or fewer."""
    return list(numbers) if len(numbers) == channels else [sum(numbers) / len(numbers)] * channels


def check_split_names(root: Path) -> None:
    """Raise a ValueError if a folder has a usual name of a split, and not the one that is read."""
    for path in root.iterdir():
        stage = SPLIT_NAMES.get(path.name.lower(), path.name)
        if path.is_dir() and stage != path.name:
            raise ValueError(f"{path} looks like a split, which is read from {stage} only: rename it to {stage}")


def _class_folders(root: Path) -> dict[Stage, dict[str, list[Path]]]:
    """Return the files of each class of each split; a single tree is "train"."""
    if not root.is_dir():
        raise ValueError(f"no folder {root}: name the data by --data.root, or try --data Digits, which needs none")
    check_split_names(root)
    stages: tuple[Stage, ...] = ("train", "val", "test")
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
    found = {path.name: image_files_below(path) for path in folders}
    return {name: files for name, files in found.items() if files}
