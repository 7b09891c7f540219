"""Tables of measurements, and the intervals in them."""

import math

import pytest
import torch

from vit.explain.evaluation.table import Interval, Table, bootstrap


def test_the_interval_is_that_of_the_mean():
    values = torch.randn(400, generator=torch.Generator().manual_seed(0)).double()
    interval = bootstrap(values)
    assert interval.mean == pytest.approx(values.mean().item())
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * values.std().item() / 20, rel=0.1)


def test_the_same_images_are_drawn_for_every_method_so_that_pairs_stay_pairs():
    values = torch.rand(50)
    shifted = bootstrap(values + 1)
    plain = bootstrap(values)
    assert shifted.low - plain.low == pytest.approx(1, abs=1e-6)


def test_one_image_has_no_interval():
    assert bootstrap(torch.tensor([0.5])) == Interval(0.5, -math.inf, math.inf)


def test_no_values_are_an_error():
    with pytest.raises(ValueError, match=r"values have shape \(0,\)"):
        bootstrap(torch.empty(0))


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
