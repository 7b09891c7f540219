"""The tables of a report: what a reader sees of a threshold."""

import pytest

from vit.objectives.classify.tables import shown_threshold, threshold_table


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.375, "37.5"), (0.0003, "0.03"), (0.99985, "99.985"), (0.001, "0.1"), (0.999, "99.9"), (0, "0")],
)
def test_a_threshold_is_shown_as_0_or_100_percent_only_if_it_is(share, shown):
    assert shown_threshold(share) == shown
    found = {"class": "tumour", "value": share, "sensitivity": 1.0, "specificity": 0.5, "precision": None}
    (table,) = threshold_table({"threshold": found}, "test")
    assert table.header[0] == f"P(tumour) of at least {shown} %"
