"""Descriptions of an objective's scores, pictures and tables, for the console, the results and the report of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

NONE = "\u2013"  # stands for a missing value
SPACE = "\u00a0"  # does not break a line


@dataclass(frozen=True)
class Score:
    """A number of an evaluation, and how it is written.

    >>> Score("bits_per_pixel", "Bits per pixel", better="lower", unit="").text(1.32249)
    '1.322'

    Attributes:
        name: Key of the number in ``scores()``; as a monitor it is logged as ``val_NAME`` and ``test_NAME``.
        label: Its name in the report.
        better: Which values are better.
        unit: "%" for a share, which is written in per cent; "" for a number.
        note: What it is, in words.
        is_of_images: Whether it is a share of independent images, so that it has a confidence interval.
    """

    name: str
    label: str
    better: Literal["higher", "lower"] = "higher"
    unit: Literal["%", ""] = "%"
    note: str = ""
    is_of_images: bool = False

    @property
    def mode(self) -> Literal["max", "min"]:
        """The direction, as Lightning's callbacks name it."""
        return "max" if self.better == "higher" else "min"

    def text(self, value: float) -> str:
        """Return a value as text."""
        return f"{100 * value:.2f}{SPACE}%" if self.unit else f"{value:.3f}"


@dataclass(frozen=True)
class Picture:
    """A picture that an objective draws of an evaluation: ``NAME.png`` in the folder of the run.

    Attributes:
        name: Name of the file.
        title: Its heading in the report.
        alt: What it shows, in words.
        place: Its place in the report: a row of its own, beside the tables, or beside the facts of the run.
        has_photographs: Whether it shows photographs, whose colours a dark page must not change.
        note: What a reader has to know about it, written below it.
    """

    name: str
    title: str
    alt: str
    place: Literal["row", "tables", "facts"] = "row"
    has_photographs: bool = False
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table of the report.

    Attributes:
        title: Its heading.
        header: Names of the columns; the first is that of the rows.
        rows: The cells of each row, as text.
        bars: A share in [0, 1] for each row, drawn as a bar; none draws no bars.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    bars: Sequence[float] = ()


def tenths(share: float | None) -> str:
    """Return a share in per cent with one decimal.

    >>> tenths(0.125)
    '12.5'
    """
    return NONE if share is None else f"{100 * share:.1f}"


def number_or_none(value: Any) -> float | None:
    """Return a number that JSON can hold: None for NaN, such as 0 / 0, and for infinity.

    >>> import torch
    >>> number_or_none(torch.tensor(0.5)), number_or_none(torch.tensor(0.0) / 0)
    (0.5, None)
    """
    return value.item() if value.isfinite() else None
