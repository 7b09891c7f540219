"""Letters that the font of plots lacks: another installed font draws them, or they are written as numbers."""

import warnings

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from matplotlib import colormaps, font_manager, rcParams
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from vit.support import plotting
from vit.support.plotting import (
    GREY,
    SERIES,
    dark_half,
    drawable,
    fonts_with,
    letters_on,
    photographs_in,
    save_photographs,
)

MADE = "\u6c49"  # of Han, which no font that comes with matplotlib has
MISSING = "\u5b57"


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


@pytest.fixture
def font(tmp_path):
    """An installed font of one Chinese letter, a square."""
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen = TTGlyphPen(None)
    for place, point in enumerate(((0, 0), (0, 700), (700, 700), (700, 0))):
        (pen.lineTo if place else pen.moveTo)(point)
    pen.closePath()
    glyphs = {".notdef": TTGlyphPen(None).glyph(), "made": pen.glyph()}
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([*glyphs])
    builder.setupCharacterMap({ord(MADE): "made"})
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (800, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Made for a test", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(tmp_path / "made.ttf")
    before = [*font_manager.fontManager.ttflist]
    font_manager.fontManager.addfont(tmp_path / "made.ttf")
    fonts_with.cache_clear()
    yield "Made for a test"
    font_manager.fontManager.ttflist = before
    fonts_with.cache_clear()


def draw(texts, path):
    figure = Figure()
    for text in texts:
        figure.text(0, 0, text)
    figure.savefig(path)


def test_letters_are_drawn_in_a_font_that_has_them_without_a_warning(font, tmp_path):
    with warnings.catch_warnings(), drawable(["cat", f"{MADE}1"]) as names:
        warnings.simplefilter("error")
        assert names == ["cat", f"{MADE}1"]
        assert rcParams["font.family"][-1] == font
        draw(names, tmp_path / "named.png")
    assert font not in rcParams["font.family"]


def test_letters_of_no_font_are_written_as_numbers_without_a_warning(font, tmp_path):
    with warnings.catch_warnings(), drawable([f"{MADE}{MISSING}", "\udcff.png", "a\tb"]) as names:
        warnings.simplefilter("error")
        assert names == [f"{MADE}\\u5b57", "\\udcff.png", "a\\tb"]
        draw(names, tmp_path / "named.png")


def test_a_name_from_right_to_left_leaves_the_order_of_what_stands_beside_it(tmp_path):
    with warnings.catch_warnings(), drawable(["\u0643\u0644\u0628", "dog"]) as names:
        warnings.simplefilter("error")
        assert names == ["\u200e\u0643\u0644\u0628\u200e", "dog"]
        draw(names, tmp_path / "named.png")


@pytest.mark.parametrize("name", ["RdBu", "Blues", "viridis"])
def test_letters_on_a_colour_stand_out_from_it(name):
    colours = colormaps[name](np.linspace(0, 1, 101))[:, :3]
    assert min(contrast(colour, letters_on(colour)) for colour in colours) >= 4.5


@pytest.mark.parametrize("layout", [None, "constrained"])
def test_the_file_of_a_figure_says_where_its_photographs_are(tmp_path, layout):
    figure = Figure(figsize=(4, 3), layout=layout)
    axes = figure.subplots()
    axes.set_title("letters")
    red = np.zeros((2, 2, 3))
    red[..., 0] = 1.0
    axes.imshow(red, extent=(1, 2, 4, 3))
    axes.imshow(red, extent=(2.5, 5, 6, 3))
    axes.set(xlim=(0, 6), ylim=(8, 0), aspect="auto")
    save_photographs(figure, tmp_path / "figure.png", dpi=100)
    pixels = np.asarray(Image.open(tmp_path / "figure.png").convert("RGB"))
    is_red = (pixels == (255, 0, 0)).all(axis=-1)
    found = photographs_in(tmp_path / "figure.png")
    assert len(found) == 2
    inside = np.zeros_like(is_red)
    for left, top, right, bottom in found:
        rows, columns = slice(round(300 * top), round(300 * bottom)), slice(round(400 * left), round(400 * right))
        inside[rows, columns] = True
        assert is_red[rows, columns][2:-2, 2:-2].all()
    assert (is_red & ~inside).mean() < 0.01


def test_other_pictures_have_no_known_photographs_and_other_formats_are_written(tmp_path):
    Image.new("RGB", (2, 3)).save(tmp_path / "plain.png")
    assert photographs_in(tmp_path / "plain.png") == []
    save_photographs(Figure(), tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").exists()
