"""Letters that the font of plots lacks: another installed font draws them, or they are written as numbers."""

import warnings

import pytest
from fontTools.fontBuilder import FontBuilder
from matplotlib import font_manager, rcParams
from matplotlib.figure import Figure

from vit.support.fonts import drawable, fonts_with

MADE = "\u6c49"  # of Han, which no font that comes with matplotlib has
MISSING = "\u5b57"


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
