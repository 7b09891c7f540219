"""Names from outside on a terminal, on a page, in a spreadsheet."""

import pytest

from vit.support.printable import csv_text, printable


@pytest.mark.parametrize("text", ["cat.png", "Zürich 漢字", "a\u3000b", "👩\u200d🔬.jpg", "a\\b", ""])
def test_what_shows_is_left_as_it_is(text):
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("two\nlines\r\t\x00", r"two\nlines\r\t\x00"),
        ("\x9b2J", r"\x9b2J"),
        ("bytes \udcff\udc80", r"bytes \udcff\udc80"),
        ("photo\u202egpj.exe", r"photo\u202egpj.exe"),
        ("\u2066isolated\u2069", r"\u2066isolated\u2069"),
    ],
)
def test_what_would_act_is_its_number(text, shown):
    assert printable(text) == shown
    assert printable(text).isprintable()


def test_lines_may_be_kept():
    assert printable("two\nlines\x1b", keep="\n") == "two\nlines\\x1b"


@pytest.mark.parametrize("text", ["=1+1", "+cmd|x", "-cat.png", "@SUM(1)", "-1+2", "-"])
def test_a_text_that_begins_like_a_formula_is_quoted(text):
    assert csv_text(text) == f"'{text}"


@pytest.mark.parametrize(
    ("text", "cell"),
    [("\tx", r"'\tx"), ("\r=1", r"'\r=1"), ("a=1", "a=1"), ("-0.5", "-0.5"), ("+1e-3", "+1e-3"), ("\udcff", r"\udcff")],
)
def test_other_cells_are_as_printed(text, cell):
    assert csv_text(text) == cell
