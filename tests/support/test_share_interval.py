"""The interval of a share, against that of scipy."""

import pytest
from scipy.stats import binomtest

from vit.support.share_interval import share_interval


@pytest.mark.parametrize(("correct", "count"), [(0, 7), (7, 7), (90, 101), (9833, 10_000)])
def test_the_interval_is_that_of_wilson(correct, count):
    oracle = binomtest(correct, count).proportion_ci(method="wilson")
    assert share_interval(correct / count, count) == pytest.approx((oracle.low, oracle.high), abs=1e-6)


def test_another_confidence_has_another_width():
    oracle = binomtest(30, 40).proportion_ci(confidence_level=0.8, method="wilson")
    assert share_interval(0.75, 40, confidence=0.8) == pytest.approx((oracle.low, oracle.high), abs=1e-12)
