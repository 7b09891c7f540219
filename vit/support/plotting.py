"""The look of all plots: one palette, one style."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

from vit.support.files import replacing

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
    font = get_font(findfont(FontProperties()))
    return "".join(dict.fromkeys(letter for letter in text if not font.get_char_index(ord(letter))))
