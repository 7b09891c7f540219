"""The look of all plots: one palette, one style."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from unicodedata import bidirectional

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from PIL import Image

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

EVEN = 0.1791  # the luminance from which on black letters have more contrast than white ones, by WCAG
PLACES = "photographs"  # the entry of a PNG file that says where its photographs are
LAST_RESORT = "Last Resort"  # a font of boxes
LEFT_TO_RIGHT = "\u200e"  # an invisible mark
REGULAR = (400, "normal", "regular")  # weights


@contextmanager
def drawable(texts: Sequence[str]) -> Iterator[list[str]]:
    r"""Yield texts as a picture can show them; inside the block, it is drawn in fonts that have their letters.

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
    """Return installed fonts that together have most of these letters, the best first, and the letters of each."""
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


def save_photographs(figure: Figure, path: str | Path, **options: Any) -> None:
    """Write a figure of photographs; its PNG file says where they are, so that a dark page can darken the rest."""
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()  # places the axes
    whole = figure.bbox
    boxes = [image.get_window_extent() for axes in figure.axes for image in axes.images]
    places = [
        [box.x0 / whole.width, 1 - box.y1 / whole.height, box.x1 / whole.width, 1 - box.y0 / whole.height]
        for box in boxes
    ]
    shares = json.dumps([[round(share, 4) for share in place] for place in places])
    save_figure(figure, path, **options, **({"metadata": {PLACES: shares}} if Path(path).suffix == ".png" else {}))


def photographs_in(picture: Path) -> list[list[float]]:
    """Return left, top, right and bottom of each photograph in a PNG file, as shares of its size; [] if not known.

    The outermost pixels, which may be blended with the paper around, are left out.
    """
    with Image.open(picture) as opened:
        across, down = (1 / side for side in opened.size)
        places = json.loads(opened.info.get(PLACES, "[]"))
    return [[left + across, top + down, right - across, bottom - down] for left, top, right, bottom in places]


def letters_on(color: Any) -> str:
    """Return the colour of letters on a colour: "black" or "white", whichever has more contrast, at least 4.58.

    >>> letters_on("navy"), letters_on((0.26, 0.58, 0.76))
    ('white', 'black')
    """
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in to_rgb(color)]
    luminance = sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "black" if luminance > EVEN else "white"


def missing_letters(text: str) -> str:
    """Return the letters of a text that the font of plots lacks, and draws as boxes.

    >>> missing_letters("Zürich 漢字")
    '漢字'
    """
    known = letters_in(findfont(FontProperties()), text)
    return "".join(dict.fromkeys(letter for letter in text if letter not in known))
