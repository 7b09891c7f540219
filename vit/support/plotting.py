"""The look of all plots: one palette, one style."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import matplotlib
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

# Okabe and Ito's palette: colour-blind readers tell its colours apart, and so does a grey printout.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
AMBER, SKY, YELLOW, GREY = "#E69F00", "#56B4E9", "#F0E442", "#8a8a8a"

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


@contextmanager
def drawable(texts: Sequence[str]) -> Iterator[list[str]]:
    r"""Yield texts as a picture can show them, and have it drawn in fonts that have their letters.

    A letter that no installed font has is written as its number.

    >>> with drawable(["Zürich", "bell\a"]) as names:
    ...     print(*names)
    Zürich bell\x07
    """
    missing = frozenset(missing_letters("".join(texts)))
    families = fonts_with(missing)
    with matplotlib.rc_context({"font.family": [*matplotlib.rcParams["font.family"], *families]}):
        lacking = missing.difference(*(_letters_of(name, missing) for name in families))
        escaped = {ord(letter): letter.encode("unicode_escape").decode() for letter in lacking}
        yield [text.translate(escaped) for text in texts]


@lru_cache
def fonts_with(letters: frozenset[str]) -> list[str]:
    """Return the installed fonts that together have the most of these letters, the one that has the most first."""
    families = sorted({font.name for font in fontManager.ttflist if not font.name.startswith(LAST_RESORT)})
    known = {name: found for name in families if letters and (found := _letters_of(name, letters))}
    chosen, left = [], letters
    while known and (best := max(known, key=lambda name: len(known[name] & left))) and known[best] & left:
        chosen.append(best)
        left -= known[best]
    return chosen


def _letters_of(family: str, letters: frozenset[str]) -> frozenset[str]:
    font = get_font(findfont(FontProperties(family=family)))
    return frozenset(letter for letter in letters if font.get_char_index(ord(letter)))


def missing_letters(text: str) -> str:
    """Return the letters of a text that the font of plots lacks, and draws as boxes.

    >>> missing_letters("Zürich 漢字")
    '漢字'
    """
    font = get_font(findfont(FontProperties()))
    return "".join(dict.fromkeys(letter for letter in text if not font.get_char_index(ord(letter))))
