"""Intervals hold as often as they say, and paired ones are narrower."""

import pytest
import torch

from vit.analysis.intervals import (
    Interval,
    interval_of_share,
    mean_interval,
    mean_interval_of_draws,
    paired_difference,
    together,
)


def hits(intervals, truth):
    return sum(interval.low <= truth <= interval.high for interval in intervals) / len(intervals)


def test_intervals_hold_in_about_95_of_100_cases():
    draw = torch.Generator().manual_seed(0)
    shares, differences, means = [], [], []
    for _ in range(600):
        first = torch.rand(80, generator=draw) < 0.9
        second = first & (torch.rand(80, generator=draw) < 0.8)  # of those right before, four in five stay so
        shares.append(interval_of_share(first.double().mean().item(), 80))
        differences.append(paired_difference(first.tolist(), second.tolist()))
        means.append(mean_interval(torch.randn(6, generator=draw) + 2))
    for found, truth in ((shares, 0.9), (differences, 0.18), (means, 2)):
        assert 0.92 < hits(found, truth) < 0.98


def test_an_interval_over_draws_holds_for_draws_that_differ_more_than_images_let_them():
    generator, found = torch.Generator().manual_seed(0), []
    for _ in range(300):
        of_draws = 0.1 * torch.randn(6, 1, generator=generator)  # a random order is better or worse on all images
        of_images = 0.5 * torch.randn(1, 200, generator=generator)
        found.append(mean_interval_of_draws(of_draws + of_images))
    assert 0.92 < hits(found, 0) < 0.99


def test_a_paired_difference_is_clear_where_two_samples_would_not_tell():
    before, after = [True] * 60 + [False] * 40, [True] * 52 + [False] * 48
    paired = paired_difference(before, after)
    assert paired.value == pytest.approx(0.08)
    assert paired.is_clear
    apart = paired_difference(before, after[::-1])  # the same shares, of images that have nothing to do with each other
    assert apart.value == pytest.approx(0.08)
    assert not apart.is_clear


def test_many_comparisons_widen_the_interval():
    before, after = [True] * 60 + [False] * 40, [True] * 52 + [False] * 48
    widths = [paired_difference(before, after, count) for count in (1, 15)]
    assert widths[1].high - widths[1].low > 1.3 * (widths[0].high - widths[0].low)
    values = torch.randn(9)
    assert mean_interval(values, 15).high > mean_interval(values).high


def test_nothing_that_differs_is_not_clear():
    assert not paired_difference([True] * 5, [True] * 5).is_clear
    assert Interval(0.1, 0.02, 0.2).is_clear
    assert not Interval(0.1, -0.02, 0.2).is_clear


def test_too_few_images_are_refused():
    with pytest.raises(ValueError, match=r"no images \(0\)"):
        paired_difference([], [])
    with pytest.raises(ValueError, match=r"too few images \(1\)"):
        mean_interval(torch.ones(1))


def test_numbers_in_words():
    assert together([2, 3, 5]) == "2, 3 and 5"
