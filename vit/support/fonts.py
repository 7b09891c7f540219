"""Fonts that have the letters of any language, for names in plots."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from unicodedata import bidirectional

import matplotlib
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

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


def missing_letters(text: str) -> str:
    """Return the letters of a text that the font of plots lacks, and draws as boxes.

    >>> missing_letters("Zürich 漢字")
    '漢字'
    """
    known = letters_in(findfont(FontProperties()), text)
    return "".join(dict.fromkeys(letter for letter in text if letter not in known))
