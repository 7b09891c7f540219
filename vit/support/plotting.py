"""The look of all plots: one palette, one style."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgb

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


def letters_on(color: Any) -> str:
    """Return the colour of letters on a colour: "black" or "white", whichever has more contrast, at least 4.58.

    >>> letters_on("navy"), letters_on((0.26, 0.58, 0.76))
    ('white', 'black')
    """
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in to_rgb(color)]
    luminance = sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "black" if luminance > EVEN else "white"
