"""Image files in one folder per class, for training."""

import itertools
import re
from pathlib import Path
from typing import Any, get_args

from vit.data.labelled_files import LabelledFiles, LabelledPaths
from vit.data.module import Stage
from vit.data.search import Found, list_folder, search, why_left_out
from vit.support.class_names import match_classes
from vit.support.printable import list_names, printable

# Usual names of the splits, and the split of each.
SPLIT_NAMES: dict[str, Stage] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}

# Other words in names of folders that are splits rather than classes, such as "dev_images".
WORDS_OF_SPLITS = {*SPLIT_NAMES, "dev", "eval", "evaluation", "holdout"}
BESIDE = "beside train, val and test"
EMPTY = "split without images"


class ImageFolder(LabelledFiles):
    """Images in one folder per class.

    Links to files and folders are followed. Files that are left out are counted by reason, and a folder that cannot be
    read is an error.

    The layout is ``root/train/CLASS/...`` beside ``root/val/CLASS/...``, ``root/test/CLASS/...`` or both, or a single
    tree ``root/CLASS/...``, which is split. Missing validation images are held out of the training images. A class of
    two images has one for training and one for validation; a class of three has one for test, too.

    Images in no class folder, or in a single one, have no classes: ``num_classes`` is 0, and a model can learn from
    them without labels. A folder without images is a ValueError, and so are classes that differ between the splits.

    Args:
        root: The folder.
        class_names: Names of all classes, in the order of the logits; some may have no images. None takes the names of
            the folders, or in a test those of the trained model.
        kwargs: Those of LabelledFiles.

    Raises:
        ValueError: If the name of a folder is not one of the classes.
    """

    def __init__(self, root: str, *, class_names: list[str] | None = None, **kwargs: Any) -> None:
        self.known_classes = class_names
        super().__init__(root=root, **kwargs)

    def find_splits(self) -> dict[Stage, LabelledPaths]:
        """Return the files and labels of each split; a single tree is "train"."""
        folders, found = _class_folders(self.root, self.known_classes)
        self.not_read = {reason: sorted(paths) for reason, paths in found.left_out.items()}
        if self.known_classes is None:
            _check_same_classes(folders, self.root)
            self.without_classes = _why_without_classes(folders, self.root)
        if self.without_classes is not None:
            self.class_names = []
            files = {stage: [*itertools.chain(*classes.values())] for stage, classes in folders.items()}
            return {stage: (paths, [0] * len(paths)) for stage, paths in files.items()}
        self.class_names = match_classes(set().union(*folders.values()), self.known_classes, self.root)
        return {
            stage: (
                [path for name in self.class_names for path in classes.get(name, [])],
                [label for label, name in enumerate(self.class_names) for _ in classes.get(name, [])],
            )
            for stage, classes in folders.items()
        }


def check_split_names(root: Path) -> None:
    """Check that no folder has another usual name of a split than the one that is read, such as "valid" for "val"."""
    for path in list_folder(root):
        stage = SPLIT_NAMES.get(path.name.lower(), path.name)
        if path.is_dir() and stage != path.name:
            raise ValueError(f"{path} looks like a split, which is read from {stage} only: rename it to {stage}")


def _class_folders(root: Path, known: list[str] | None) -> tuple[dict[Stage, dict[str, list[Path]]], Found]:
    """Return the files of each class of each split, and what is left out; a single tree is "train".

    Images for a model that knows its classes need no folder ``train``. Images in no class folder are of the class "".
    """
    if not root.is_dir():
        raise ValueError(f"no folder {root}: name the data by --data.root, or try --data Digits, which needs none")
    check_split_names(root)
    found = Found()
    stages = [stage for stage in get_args(Stage) if (root / stage).is_dir()]
    beside: list[Path] = []
    if "train" in stages or (known is not None and stages and not set(stages) & set(known)):
        beside = [path for path in list_folder(root) if path.name not in stages]
        found.leave_out(BESIDE, beside)
        splits = _classes_of_splits(root, stages, found, needs_train=known is None)
        if stages == ["train"] and not splits["train"]:
            _check_no_class_beside(root / "train", beside)
    else:
        splits = {"train": _classes(root, found)}
    if known is None and stages and "train" not in stages:
        raise ValueError(
            f"{root} has a folder {stages[0]} and no folder train, which a split needs: move the training images to "
            f"{root / 'train'}, or rename {stages[0]} if it is a class"
        )
    if known is None and not stages:
        _check_no_split_is_a_class(splits["train"], root)
    if known is None and not any(splits.values()):
        whole = {stage: search(root / stage if "train" in stages else root) for stage in splits}
        if all(below.images for below in whole.values()):
            return _without_classes(root, whole, stages, beside)
    # Without a model, classes that differ between the splits have a message of their own.
    has_images = splits["train"] if known is None else splits and all(splits.values())
    if not has_images:
        raise ValueError(
            f"no class folders with images in {_first_empty(root, splits)}: it needs CLASS/image.jpg or "
            f"train/CLASS/image.jpg, or without labels any image files{found.hint}"
        )
    return splits, found


def _without_classes(
    root: Path, whole: dict[Stage, Found], stages: list[Stage], beside: list[Path]
) -> tuple[dict[Stage, dict[str, list[Path]]], Found]:
    """Return all images of each split as one class "", and what is left out."""
    found = Found()
    found.leave_out(BESIDE, beside)
    found.leave_out(EMPTY, [root / stage for stage in stages if stage not in whole])
    for below in whole.values():
        for reason, paths in below.left_out.items():
            found.leave_out(reason, paths)
    return {stage: {"": below.images} for stage, below in whole.items()}, found


def _first_empty(root: Path, splits: dict[Stage, dict[str, list[Path]]]) -> Path:
    """Return the folder of the first split without class folders; of a single tree, its root."""
    return next((root / stage for stage, classes in splits.items() if not classes and len(splits) > 1), root)


def _classes_of_splits(
    root: Path, stages: list[Stage], found: Found, needs_train: bool
) -> dict[Stage, dict[str, list[Path]]]:
    """Return the files of each class of each split; one without images, such as of a .gitkeep alone, is left out.

    Raises:
        ValueError: If a split has only images in formats that are not read.
    """
    splits = {stage: _classes(root / stage, found) for stage in stages}
    for stage in (stage for stage in stages if not splits[stage]):
        below = search(root / stage)
        if not below.images and below.hint:
            raise ValueError(f"no image in {root / stage} is read{below.hint}: convert them, or move the folder away")
        if not below.images and not (needs_train and stage == "train"):
            del splits[stage]
            found.leave_out(EMPTY, [root / stage])
    return splits


def _check_no_class_beside(train: Path, beside: list[Path]) -> None:
    """Check that a folder train without class folders is no class itself, beside the folders of the others."""
    folders = (path for path in beside if why_left_out(path) is None and path.is_dir())
    if (other := next((path for path in folders if search(path).images), None)) is not None:
        remedy = f"move the class folders into {train}"
        if search(train).images:
            remedy = (
                f"if train is a class, make a new folder and move all class folders into its folder train, as "
                f"train/train and train/{other.name}; if not, move {other} elsewhere"
            )
        raise ValueError(f"{train} has no class folders, and {other} beside it has images: {remedy}")


def _check_no_split_is_a_class(classes: dict[str, list[Path]], root: Path) -> None:
    """Check that no two class folders, such as training_set and test_set, have names of splits and the same folders."""
    words = {name: WORDS_OF_SPLITS & {*re.findall("[a-z]+", name.lower())} for name in sorted(classes)}
    holders = {name: {path.parent.name for path in classes[name]} for name in words if words[name]}
    for one, other in itertools.combinations(holders, 2):
        if words[one] != words[other] and len(shared := sorted(holders[one] & holders[other])) > 1:
            raise ValueError(
                f"{root / one} and {root / other} look like splits, as both have images of {list_names(shared)}: "
                "rename them to train, val or test; if they are classes, put the images of each into one folder"
            )


def _check_same_classes(splits: dict[Stage, dict[str, list[Path]]], root: Path) -> None:
    """Raise a ValueError if the splits have different classes."""
    names = set(splits["train"])
    for stage, classes in splits.items():
        if differing := sorted(names ^ set(classes)):
            raise ValueError(
                f"classes differ between {root / 'train'} and {root / stage}: only one of them has "
                f"{list_names(differing)}; give both the same class folders"
            )


def _why_without_classes(splits: dict[Stage, dict[str, list[Path]]], root: Path) -> str | None:
    """Return why a classifier cannot learn from images in no class folder, or in a single one; else None."""
    names = [*splits["train"]]
    if len(names) > 1:
        return None
    if names == [""]:
        return (
            f"no class folders with images in {root}: it needs CLASS/image.jpg or train/CLASS/image.jpg; without "
            "labels, --model MaskedAutoencoder learns from it"
        )
    return f"the images in {root} are of one class ({names[0]}): name the folder that holds the class folders"


def _classes(folder: Path, found: Found) -> dict[str, list[Path]]:
    classes: dict[str, list[Path]] = {}
    for path in list_folder(folder):
        if (reason := why_left_out(path)) is not None:
            found.leave_out(reason, [path])
        elif not path.is_dir():
            found.leave_out("in no class folder", [path])
        else:
            below = search(path)
            for reason, paths in below.left_out.items():
                found.leave_out(reason, paths)
            if below.images:
                # Escaped, as checkpoints refuse unprintable names.
                classes.setdefault(printable(path.name), []).extend(below.images)
            elif below.hint:  # a class would be missing
                raise ValueError(f"no image in {path} is read{below.hint}: convert them, or move the folder elsewhere")
            else:
                found.leave_out("folder without images", [path])
    return classes
