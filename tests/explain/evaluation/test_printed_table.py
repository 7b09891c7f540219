"""Tables of measurements."""

import pytest

from vit.explain.evaluation.printed_table import Interval, Table


def test_numbers_stand_right_and_words_left():
    table = Table([{"method": "a", "hits": Interval(0.5, 0.25, 0.75)}, {"method": "bcd", "hits": Interval(1, 1, 1)}])
    assert str(table).splitlines() == [
        "| method |                   hits |",
        "|:-------|-----------------------:|",
        "| a      | 0.500 (0.250 to 0.750) |",
        "| bcd    | 1.000 (1.000 to 1.000) |",
    ]


def test_a_row_is_found_by_its_values():
    table = Table([{"a": 1, "b": 2}, {"a": 1, "b": 3}])
    assert table.row(a=1, b=3) == {"a": 1, "b": 3}
    assert table.column("b") == [2, 3]
    with pytest.raises(ValueError, match="no row has"):
        table.row(b=4)


def test_html_is_escaped():
    assert "<td>&lt;b&gt;</td>" in Table([{"name": "<b>"}])._repr_html_()
