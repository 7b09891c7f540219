"""Makes text from outside, such as names of files and of classes, safe for a terminal, a page and a spreadsheet."""

import unicodedata
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

HIDDEN = ("Cc", "Cs")  # control characters, and surrogates, which stand for bytes of a name that are not text
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}  # they turn the letters after them around
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what begins a formula in a spreadsheet


def printable(text: str, keep: str = "") -> str:
    r"""Return a text with control characters and marks of direction as numbers, except for those in ``keep``.

    >>> print(printable("a cat\x1b[2J\udcff.png"))
    a cat\x1b[2J\udcff.png
    """
    if text.isprintable():
        return text
    return "".join(_number(letter) if letter not in keep and _acts(letter) else letter for letter in text)


def _acts(letter: str) -> bool:
    return unicodedata.category(letter) in HIDDEN or unicodedata.bidirectional(letter) in DIRECTIONS


def _number(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def csv_text(text: str) -> str:
    r"""Return a text as the cell of a CSV file: a spreadsheet runs what begins like a formula, unless it is quoted.

    An apostrophe before it is OWASP's advice against "CSV injection". A number stays a number.

    >>> csv_text("=HYPERLINK(1).png"), csv_text("cat.png"), csv_text("-0.5")
    ("'=HYPERLINK(1).png", 'cat.png', '-0.5')
    """
    return printable(f"'{text}" if text.startswith(FORMULA) and not _is_number(text) else text)


def plain_text(cell: str) -> str:
    """Return the text of a cell that ``csv_text`` has written, without the apostrophe before a formula.

    >>> plain_text("'=HYPERLINK(1).png"), plain_text("'tis")
    ('=HYPERLINK(1).png', "'tis")
    """
    return cell[1:] if cell.startswith("'") and csv_text(cell[1:]) == cell else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def list_names(names: Sequence[T], most: int = 10, show: Callable[[T], str] = str) -> str:
    """Return the first names as ``show`` writes each, and the number of the others.

    >>> list_names([str(number) for number in range(12)])
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more'
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(map(show, names[:most]))}{more}"
