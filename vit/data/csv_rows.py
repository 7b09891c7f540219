"""Reads CSV tables of image files, and reports mistakes in them with the number of the line."""

import csv
from collections.abc import Sequence
from pathlib import Path

from vit.data.inventory import first_names
from vit.support.printable import printable


def read_rows(path: Path, *needed: str, optional: Sequence[str] = ()) -> list[tuple[int, dict[str, str]]]:
    """Return the number of each line and its cells by column; a byte order mark and empty lines are ignored.

    Unprintable characters in the names of columns are escaped: some are classes, and checkpoints refuse such names.

    Args:
        path: The CSV file, whose first line names the columns.
        needed: Columns that must be there; that of the image file is "file".
        optional: Columns that have a meaning if they are there.

    Raises:
        ValueError: If the file is not such a table.
    """
    lines = _read_lines(path)
    names = [name.strip() for name in lines[0][1]] if lines else []
    shown, columns = ",".join(names), [*map(printable, names)]
    _check_columns(columns, shown, path, needed, optional)
    rows = [(number, _row(f"line {number} of {path}", cells, columns, shown)) for number, cells in lines[1:]]
    if not rows:
        raise ValueError(f"{path} names no images: write a line {shown} for each")
    return rows


def _read_lines(path: Path) -> list[tuple[int, list[str]]]:
    """Return the number and the cells of each line that is not empty."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            # Without strict, a quote that is never closed would swallow all lines after it.
            reader = csv.reader(file, strict=True)
            return [(reader.line_num, cells) for cells in reader if cells]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"cannot read {path}: {error}; save it as CSV in UTF-8") from None


def _check_columns(columns: list[str], shown: str, path: Path, needed: Sequence[str], optional: Sequence[str]) -> None:
    """Check the columns that the first line of a table names."""
    known = (*needed, *optional)
    for name in columns:
        if name not in known and name.lower() in known:
            both = f"{name.lower()!r} and " if name.lower() in columns else ""
            remedy = "rename one" if both else f"write {name.lower()}, or rename the class"
            raise ValueError(f"the first line of {path} has {both}{name!r}: {remedy}")
    lacking = [name for name in needed if name not in columns]
    if lacking:
        mark = next((mark for mark in ";\t" if mark in shown), None)
        remedy = "add it" if mark is None else f"separate the cells by commas, not by {mark!r}"
        raise ValueError(f"the first line of {path} is {shown!r}, without a column {lacking[0]!r}: {remedy}")
    for name in columns:
        if not name or columns.count(name) > 1:
            raise ValueError(f"the first line of {path} is {shown!r}: give each column a name of its own")


def _row(place: str, cells: list[str], columns: list[str], shown: str) -> dict[str, str]:
    """Return the cells of a line by column."""
    if any("\0" in cell for cell in cells):
        raise ValueError(f"{place} has a NUL byte: save the table as CSV in UTF-8")
    row = dict(zip(columns, cells, strict=False))
    lacking = [name for name in columns if name not in row]
    if not lacking and not row["file"].strip():
        lacking = ["file"]
    if lacking:
        raise ValueError(f"{place} has no {lacking[0]}: write {shown}")
    if len(cells) > len(columns):
        more = f"{len(cells)} cells, more than the first line ({len(columns)})"
        raise ValueError(f'{place} has {more}: write a cell with a comma in quotes, such as "1,5"')
    return row


def check_there(files: Sequence[Path], root: Path, table: Path) -> None:
    """Raise a ValueError if files of a table do not exist; it names the first of them."""
    if missing := [file for file in files if not file.is_file()]:
        raise ValueError(
            f"{table} names {len(missing):,} of {len(files):,} images that are not there: "
            f"{first_names(missing, root, most=10)}; add them, or delete the lines, or name their folder by --data.root"
        )
