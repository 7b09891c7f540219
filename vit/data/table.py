"""Labelled image files that a CSV file names: one label or several for each image."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit.data.folder import SPLIT_NAMES, ImageFolder, LabelledFiles
from vit.data.image_files import NAMED
from vit.data.module import Stage
from vit.data.rows import Row, read_rows

FILE, LABEL, SPLIT = "file", "label", "split"
YES, NO = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no")
SEPARATOR = ";"  # of several labels in a cell


class ImageTable(ImageFolder):
    """Images with one or several labels each, which a CSV file names.

    The columns are ``file,label``, where a file may stand in several lines or a cell may hold several labels with
    semicolons between them; or ``file`` and one column a class with 1 or 0. A column ``split`` may say of each image
    whether it is for train, val or test; without it, test images are held out. If every image has just one label, the
    labels are numbers of classes, as of ``ImageFolder``; otherwise they are rows of zeros and ones.

    Args:
        table: The CSV file.
        root: Folder that the names of the files start from; None is the folder of the table.
        kwargs: Size, splits and augmentation, as for ImageFolder.

    Raises:
        ValueError: If the table or a file cannot be read, or an argument is out of its range.
    """

    def __init__(self, table: str, root: str | None = None, **kwargs: Any) -> None:
        self.table = Path(table)
        super().__init__(root=str(self.table.parent) if root is None else root, **kwargs)

    def find_files(self) -> tuple[list[str], dict[Stage, LabelledFiles]]:
        """Return the names of the classes, and the files of each split with their labels."""
        columns, rows = read_rows(self.table, [FILE])
        if not rows:
            raise ValueError(f"{self.table} names no images: write a line for each")
        paths = [self._path(number, row[FILE].strip()) for number, row in rows]
        self._check_exist(paths)
        others = [name for name in columns if name not in (FILE, SPLIT)]
        if LABEL in others and len(others) > 1:
            raise ValueError(
                f"{self.table} has the columns {','.join(others)}: write the label in one column, or one column a class"
            )
        labels = _labels_by_name(paths, rows) if LABEL in others else self._labels_by_column(paths, rows, others)
        names = sorted(set().union(*labels.values())) if LABEL in others else others
        if len(names) < 2 - any(not found for found in labels.values()):
            raise ValueError(f"the images of {self.table} are of {len(names)} classes: name at least two")
        splits: dict[Path, Stage] = {}
        for path, (number, row) in zip(paths, rows, strict=True):
            stage = self._stage(number, row)
            if splits.setdefault(path, stage) != stage:
                raise ValueError(
                    f"line {number} of {self.table} has {path.name} for {stage}, and an earlier one for "
                    f"{splits[path]}: keep one"
                )
        stages: tuple[Stage, ...] = ("train", "val", "test")
        files = {stage: [path for path in labels if splits[path] == stage] for stage in stages}
        if not files["train"]:
            raise ValueError(f"{self.table} has no image for train: write train in the column split")
        is_single = all(len(found) == 1 for found in labels.values())
        number_of = {name: number for number, name in enumerate(names)}
        found = {
            path: number_of[next(iter(mine))] if is_single else [float(name in mine) for name in names]
            for path, mine in labels.items()
        }
        return names, {stage: (mine, [found[path] for path in mine]) for stage, mine in files.items() if mine}

    def _path(self, number: int, name: str) -> Path:
        if not name or "\0" in name:
            raise ValueError(f"line {number} of {self.table} names no file: write file and label")
        if not (self.root / name).resolve().is_relative_to(self.root.resolve()):
            raise ValueError(
                f"line {number} of {self.table} names {name}, which is not below {self.root}: name a folder above it "
                "by --data.root"
            )
        return self.root / name

    def _check_exist(self, paths: Sequence[Path]) -> None:
        missing = [path for path in dict.fromkeys(paths) if not path.is_file()]
        if missing:
            shown = ", ".join(str(path.relative_to(self.root)) for path in missing[:NAMED])
            raise ValueError(
                f"{self.table} names {len(missing):,} files that are not in {self.root}: {shown}"
                f"{' and others' if len(missing) > NAMED else ''}; add them, delete the lines, or name another folder "
                "by --data.root"
            )

    def _stage(self, number: int, row: dict[str, str]) -> Stage:
        name = row.get(SPLIT, "train").strip()
        if name.lower() not in SPLIT_NAMES:
            raise ValueError(f"line {number} of {self.table} has the split {name!r}: write train, val or test")
        return SPLIT_NAMES[name.lower()]

    def _labels_by_column(self, paths: list[Path], rows: list[Row], names: list[str]) -> dict[Path, set[str]]:
        """Return the labels of each file: the columns with a 1."""
        if not names:
            raise ValueError(f"{self.table} has no labels: add a column label, or one column a class")
        labels: dict[Path, set[str]] = {}
        for path, (number, row) in zip(paths, rows, strict=True):
            values = {name: row[name].strip().lower() for name in names}
            if wrong := next((name for name, value in values.items() if value not in (*YES, *NO)), None):
                raise ValueError(
                    f"line {number} of {self.table} has {row[wrong]!r} for {wrong}: write 1 if the image shows it, or 0"
                )
            found = {name for name, value in values.items() if value in YES}
            if labels.setdefault(path, found) != found:
                raise ValueError(f"line {number} of {self.table} has other labels for {path.name} than an earlier one")
        return labels


def _labels_by_name(paths: list[Path], rows: list[Row]) -> dict[Path, set[str]]:
    """Return the labels of each file: those in the column ``label`` of all of its lines."""
    labels: dict[Path, set[str]] = {}
    for path, (_, row) in zip(paths, rows, strict=True):
        found = {name.strip() for name in row[LABEL].split(SEPARATOR)} - {""}
        labels.setdefault(path, set()).update(found)
    return labels
