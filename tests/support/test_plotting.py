"""Colours of letters, lines and areas stand out from each other."""

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_rgb

from vit.support import plotting
from vit.support.plotting import GREY, SERIES, dark_half, letters_on


def contrast(color, other):
    """The contrast of two colours by WCAG, from 1 to 21."""
    lighter, darker = sorted((luminance(color), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_letters_and_lines_stand_out_from_white():
    lines = [*SERIES, GREY, *dark_half(12).to_rgba(range(12))]
    assert min(contrast(color, "white") for color in lines) >= 4.5


@pytest.mark.parametrize("name", ["SKY", "AMBER", "MINT", "SILVER", "ROSE"])
def test_black_letters_stand_out_from_areas(name):
    assert contrast(getattr(plotting, name), "black") >= 4.5


@pytest.mark.parametrize("name", ["RdBu", "Blues", "viridis"])
def test_letters_on_a_colour_stand_out_from_it(name):
    colours = colormaps[name](np.linspace(0, 1, 101))[:, :3]
    assert min(contrast(colour, letters_on(colour)) for colour in colours) >= 4.5
