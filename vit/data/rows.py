"""Rows of a CSV file with a header, each with the number of its line."""

import csv
from collections.abc import Collection
from pathlib import Path

Row = tuple[int, dict[str, str]]


def read_rows(path: Path, needed: Collection[str]) -> tuple[list[str], list[Row]]:
    """Return the columns of a CSV file, and its rows by column with the number of the line.

    Args:
        path: The file, in UTF-8, with commas between the values.
        needed: Columns that it must have.

    Raises:
        ValueError: If it cannot be read, lacks a column, or a row has more or fewer values than the header.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file, strict=True)
            columns = [str(name).strip() for name in table.fieldnames or ()]
            table.fieldnames = columns
            rows = [(table.line_num, row) for row in table]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    if not set(needed) <= set(columns):
        line = ",".join(columns)
        separated = " (its values are not separated by commas)" if len(columns) == 1 and set(line) & set(";\t") else ""
        raise ValueError(f"the first line of {path} is {line[:200]!r}{separated}: it must have {','.join(needed)}")
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise ValueError(f"the first line of {path} has {twice[0]!r} twice: name each column once")
    for number, row in rows:
        if None in row:
            raise ValueError(
                f"line {number} of {path} has more values than the first line: write a value with a comma in quotes, "
                'such as "1,5"'
            )
        if lacking := next((name for name in columns if row[name] is None), None):
            raise ValueError(f"line {number} of {path} has no {lacking}: write {','.join(columns)}")
    return columns, rows
