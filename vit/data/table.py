"""Image files with one or several labels each, listed in a table, for training."""

from pathlib import Path
from typing import Any, get_args

from vit.data.csv_rows import check_there, read_rows
from vit.data.folder import SPLIT_NAMES
from vit.data.labelled_files import LabelledFiles, LabelledPaths
from vit.data.module import Stage
from vit.support.class_names import match_classes
from vit.support.first_process import print_once
from vit.support.printable import list_names, printable

OPTIONAL = ("label", "split", "group")  # columns, beside those of classes
PRESENCE = {"0": False, "false": False, "1": True, "true": True}  # of a class in an image


class ImageTable(LabelledFiles):
    """Images with one or several labels each, from a table: a CSV file whose first line names its columns.

    The columns are ``file`` and ``label``, or ``file`` and one for each class, with 1 or true if an image shows the
    class, and 0 or false if not. A cell of ``label`` may have several labels, separated by ";", or none. A file may
    have several lines. A column ``split`` says which images are for train, val and test; without it, test images are
    held out. Missing validation images are held out of the training images.

    A column ``group`` names what an image comes from, such as a patient or a slide: images of one group stay on one
    side of every split.

    Labels are class numbers, (N,), if each image has exactly one label, else rows of 0 and 1, (N, num_classes). An
    image with several labels is split and drawn by the rarest of them.

    Args:
        table: Path of the CSV file.
        root: Folder that the names of files are relative to; None for that of the table.
        class_names: Names of all classes, in the order of the logits; some may be missing in the column ``label``. None
            takes those of the table, or in a test those of the trained model.
        kwargs: Size, batches, splits and augmentation, as for ImageFolder.

    Raises:
        ValueError: If the table names no labelled images, contradicts itself, or names files outside of ``root``.
    """

    def __init__(
        self, table: str, root: str | None = None, *, class_names: list[str] | None = None, **kwargs: Any
    ) -> None:
        self.table = Path(table)
        self.known_classes = class_names
        super().__init__(root=str(self.table.parent) if root is None else root, **kwargs)

    def find_splits(self) -> dict[Stage, LabelledPaths]:
        """Return the files and labels of each split; without a column ``split``, all files are "train"."""
        if not self.table.is_file():
            raise ValueError(f"no table {self.table}: name a CSV file with the columns file and label by --data.table")
        rows = read_rows(self.table, "file", optional=OPTIONAL)
        others = [name for name in rows[0][1] if name not in ("file", *OPTIONAL)]
        named = "label" in rows[0][1]
        if named and others:
            print_once(f"{self.table}: labels are those of the column label; not read: {', '.join(others)}")
        labels, stages = self._labels_and_stages(rows, None if named else others)
        found = set().union(*labels.values()) if named else set(others)
        self.class_names = match_classes(found, self.known_classes, self.table)
        if not named and self.known_classes is None:
            self.class_names = others
        elif not named and (lacking := [name for name in self.class_names if name not in others]):
            raise ValueError(f"{self.table} has no column {list_names(lacking)}, which the model knows: add it")
        self.several_labels = self._tell_of_several_labels(labels)
        self._check_classes(labels, stages)
        check_there([self.root / file for file in labels], self.root, self.table)
        self._check_groups(stages)
        numbers = {name: number for number, name in enumerate(self.class_names)}
        splits: dict[Stage, LabelledPaths] = {}
        for stage in (stage for stage in get_args(Stage) if stage in stages.values()):
            files = [file for file in labels if stages[file] == stage]
            encoded = [self._encode(labels[file], numbers) for file in files]
            splits[stage] = [self.root / file for file in files], encoded
        return splits

    def _labels_and_stages(
        self, rows: list[tuple[int, dict[str, str]]], classes: list[str] | None
    ) -> tuple[dict[str, set[str]], dict[str, Stage]]:
        """Return labels and split of each file, and note the groups.

        Args:
            rows: The numbers of the lines, and their cells by column.
            classes: The columns of classes; None if labels are in the column label.
        """
        labels: dict[str, set[str]] = {}
        stages: dict[str, Stage] = {}
        for number, row in rows:
            place = f"line {number} of {self.table}"
            file, stage = _file(row["file"].strip(), place), _stage(row.get("split", "train").strip(), place)
            if stages.setdefault(file, stage) != stage:
                raise ValueError(f"{place} names {file} for {stage}, a line before for {stages[file]}: keep one split")
            if classes is None:
                labels.setdefault(file, set()).update(_labels(row["label"]))
            else:
                found = {name for name in classes if _shows(name, row[name], place)}
                if labels.setdefault(file, found) != found:
                    raise ValueError(f"{place} names {file} again with other labels: keep one line for each file")
            if "group" in row:
                self._note_group(file, row["group"].strip(), place)
        return labels, stages

    def _encode(self, labels: set[str], numbers: dict[str, int]) -> list[float] | int:
        """Return the number of the one label of an image, or a row of 0 and 1 if images have several."""
        if self.several_labels:
            return [1.0 if name in labels else 0.0 for name in numbers]
        return numbers[next(iter(labels))]

    def _tell_of_several_labels(self, labels: dict[str, set[str]]) -> bool:
        """Return whether any image has several labels or none; print how many, if most images have one."""
        kinds = {"no label": [], "one label": [], "several labels": []}
        for file, found in labels.items():
            kinds[[*kinds][min(len(found), 2)]].append(file)
        has_one = kinds.pop("one label")
        for kind, files in kinds.items():
            if files and len(has_one) > len(labels) / 2:
                print_once(
                    f"{self.table}: {len(files):,} of {len(labels):,} images have {kind} ({list_names(files, 3)})"
                )
        return len(has_one) < len(labels)

    def _note_group(self, file: str, group: str, place: str) -> None:
        if not group:
            raise ValueError(f"{place} has no group: an image that belongs to no other one has a group of its own")
        if (before := self.groups.setdefault(file, group)) != group:
            raise ValueError(f"{place} names {file} for the group {group}, a line before for {before}: keep one group")

    def _check_groups(self, stages: dict[str, Stage]) -> None:
        """Print how many groups there are; a group in two splits is a ValueError."""
        stage_of: dict[str, Stage] = {}
        for file, group in self.groups.items():
            if (stage := stages[file]) != stage_of.setdefault(group, stage):
                raise ValueError(
                    f"the group {group} of {self.table} is in two splits, {stage_of[group]} and {stage}: images of a "
                    "group belong to one split"
                )
        if self.groups:
            print_once(f"{self.table}: {len(self.groups):,} images in {len(stage_of):,} groups, which no split divides")

    def _check_classes(self, labels: dict[str, set[str]], stages: dict[str, Stage]) -> None:
        if not self.class_names:
            raise ValueError(f"{self.table} has no label: add a column label, or one of 0 and 1 for each class")
        if self.known_classes is not None:
            return
        if len(self.class_names) == 1 and not self.several_labels:
            raise ValueError(f"the images of {self.table} are of one class ({self.class_names[0]}): add another class")
        trained = set().union(*(found for file, found in labels.items() if stages[file] == "train"))
        if lacking := [name for name in self.class_names if name not in trained]:
            raise ValueError(
                f"{self.table} has no training image of {list_names(lacking)}: add images, or delete the class"
            )


def _file(name: str, place: str) -> str:
    """Return the name of a file as a path below the root: a table may come from a stranger."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(
            f"{place} names {name}, outside of the folder: name files below it, and the folder by --data.root"
        )
    return str(path)


def _stage(name: str, place: str) -> Stage:
    if name.lower() not in SPLIT_NAMES:
        raise ValueError(f"{place} has the split {name!r}: write train, val or test")
    return SPLIT_NAMES[name.lower()]


def _labels(cell: str) -> set[str]:
    # Escaped, as checkpoints refuse unprintable names.
    return {printable(name.strip()) for name in cell.split(";")} - {""}


def _shows(name: str, cell: str, place: str) -> bool:
    if cell.strip().lower() not in PRESENCE:
        raise ValueError(f"{place} has {cell!r} in the column {name}: write 0 or 1")
    return PRESENCE[cell.strip().lower()]
