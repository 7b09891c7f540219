"""The look of all plots: one palette, one style."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from unicodedata import bidirectional

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

from vit.support.files import replacing

# The hues of Okabe and Ito, which colour-blind readers tell apart, dark enough for letters and lines on white: WCAG
# asks for a contrast of 4.5. Areas have light colours, on which letters are black.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#BF4F00", "#00785A", "#A8457F"
BROWN, VIOLET, GREY = "#8A5F00", "#6A4FC7", "#707070"
SKY, AMBER, MINT, SILVER, ROSE = "#56B4E9", "#E69F00", "#2FB48C", "#A8A8A8", "#CC79A7"  # of areas
SERIES = (BLUE, ORANGE, GREEN, PINK, BROWN, VIOLET)  # of lines in one plot


def dark_half(count: int) -> ScalarMappable:
    """Return colours for 0 to ``count`` - 1 that are ordered, and dark enough for lines on white."""
    colors = LinearSegmentedColormap.from_list("dark", matplotlib.colormaps["inferno"](np.linspace(0.1, 0.55, 256)))
    return ScalarMappable(Normalize(0, max(1, count - 1)), colors)


# A decorator of functions that draw lines and points, and a context as well.
plot_style = matplotlib.rc_context(
    {
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "figure.constrained_layout.use": True,
        "grid.alpha": 0.25,
        "legend.frameon": False,
        "savefig.dpi": 120,
    }
)

# A decorator of functions that write names of classes: a dollar sign in one starts no formula.
plain_text = matplotlib.rc_context({"text.parse_math": False})

LAST_RESORT = "Last Resort"  # a font of boxes
LEFT_TO_RIGHT = "\u200e"  # an invisible mark
REGULAR = (400, "normal", "regular")  # weights


@contextmanager
def drawable(texts: Sequence[str]) -> Iterator[list[str]]:
    r"""Yield texts as a picture can show them, and have it drawn in fonts that have their letters.

    A letter that no installed font has is written as its number.

    >>> with drawable(["Zürich", "bell\a"]) as names:
    ...     print(*names)
    Zürich bell\x07
    """
    missing = frozenset(missing_letters("".join(texts))) - {"\n"}
    fonts = fonts_with(missing)
    with matplotlib.rc_context({"font.family": [*matplotlib.rcParams["font.family"], *fonts]}):
        lacking = missing.difference(*fonts.values())
        escaped = {ord(letter): letter.encode("unicode_escape").decode() for letter in lacking}
        yield [_left_to_right(text.translate(escaped)) for text in texts]


def _left_to_right(text: str) -> str:
    """Put marks around a text such as an Arabic one, so that what stands beside it is not mirrored."""
    is_mirrored = any(bidirectional(letter) in ("R", "AL") for letter in text)
    return f"{LEFT_TO_RIGHT}{text}{LEFT_TO_RIGHT}" if is_mirrored else text


@lru_cache
def fonts_with(letters: frozenset[str]) -> dict[str, frozenset[str]]:
    """Return installed fonts that together have the most of these letters, and which each has; the best font first."""
    known: dict[str, frozenset[str]] = {}
    upright = [font for font in fontManager.ttflist if font.style == "normal" and font.weight in REGULAR]
    for font in upright if letters else ():
        if font.name not in known and not font.name.startswith(LAST_RESORT):
            known[font.name] = letters_in(font.fname, letters)
    chosen, left = {}, letters
    while known and (best := max(known, key=lambda name: len(known[name] & left))) and known[best] & left:
        chosen[best] = known[best]
        left -= known[best]
    return chosen


def letters_in(file: str, letters: Iterable[str]) -> frozenset[str]:
    """Return those of some letters that the font in a file has."""
    font = get_font(file)
    return frozenset(letter for letter in letters if font.get_char_index(ord(letter)))


def save_figure(figure: Figure, path: str | Path, **options: Any) -> None:
    """Write a figure to a file, whole or not at all; the options are those of ``Figure.savefig``."""
    path = Path(path)
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        figure.savefig(file, format=path.suffix[1:] or None, **options)


def missing_letters(text: str) -> str:
    """Return the letters of a text that the font of plots lacks, and draws as boxes.

    >>> missing_letters("Zürich 漢字")
    '漢字'
    """
    known = letters_in(findfont(FontProperties()), text)
    return "".join(dict.fromkeys(letter for letter in text if letter not in known))
