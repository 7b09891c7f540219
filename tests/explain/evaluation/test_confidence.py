"""Confidence intervals: those of SciPy's tests, and how often they hold."""

import math

import pytest
import torch
from scipy import stats

from vit.explain.evaluation.confidence import (
    Estimate,
    Interval,
    exact_share_interval,
    fewest_images,
    images_needed,
    mean_interval,
    mean_of_clusters,
    median_interval,
    median_of_more,
    spread_of_seeds,
    widened,
)

CONFIDENCES = [0.5, 0.95, 0.95 + 0.05 * 22 / 23]


@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_the_interval_of_a_mean_is_that_of_students_t(confidence):
    for count in (2, 3, 4, 5, 6, 11, 103, 500):
        values = torch.arange(count).double()
        expected = stats.ttest_1samp(values.numpy(), 0).confidence_interval(confidence)
        assert mean_interval(values, confidence) == pytest.approx(((count - 1) / 2, expected.low, expected.high))


@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_the_interval_of_a_share_is_that_of_clopper_and_pearson(confidence):
    for count, total in ((0, 1), (1, 1), (0, 97), (5, 97), (97, 97), (389, 997)):
        exact = stats.binomtest(count, total).proportion_ci(confidence, method="exact")
        assert exact_share_interval(count, total, confidence) == pytest.approx((count / total, exact.low, exact.high))


@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_the_interval_of_a_median_leaves_out_as_many_values_as_a_coin_allows(confidence):
    for total in (11, 12, 101, 1009):
        tail = (1 - confidence) / 2
        outside = max(r for r in range(total) if r == 0 or stats.binom.cdf(r - 1, total, 0.5) <= tail)
        found = median_interval(torch.randperm(total).double(), confidence)
        assert found == ((total - 1) / 2, outside - 1, total - outside) if outside else math.isinf(found.high)


def test_the_fewest_images_are_those_from_which_a_median_has_an_interval():
    for confidence in CONFIDENCES:
        fewest = fewest_images(confidence)
        assert median_interval(torch.ones(fewest), confidence) == (1, 1, 1)
        assert median_interval(torch.ones(fewest - 1), confidence) == (1, -math.inf, math.inf)


@pytest.mark.parametrize("draw", ["normal", "skewed"])
def test_of_200_medians_no_more_than_the_level_lie_outside(draw):
    values = torch.randn(200, 23, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = values if draw == "normal" else 1 - values.exp()  # most near 0, a few far below
    found = [median_interval(row) for row in values]
    assert sum(not interval.low <= 0 <= interval.high for interval in found) <= 0.05 * 200


def test_of_200_shares_no_more_than_the_level_lie_outside():
    counts = (torch.rand(200, 97, generator=torch.Generator().manual_seed(0)) < 0.1).sum(dim=1).tolist()
    found = [exact_share_interval(count, 97) for count in counts]
    assert sum(not interval.low <= 0.1 <= interval.high for interval in found) <= 0.05 * 200


def test_of_200_means_of_few_normal_values_about_the_level_lie_outside():
    values = torch.randn(200, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    outside = sum(not interval.low <= 0 <= interval.high for interval in map(mean_interval, values))
    assert outside <= stats.binom.ppf(0.99, 200, 0.05)


def test_one_image_has_no_interval():
    assert mean_interval(torch.tensor([0.5])) == Interval(0.5, -math.inf, math.inf)
    assert median_interval(torch.tensor([0.5])) == Estimate(0.5, -math.inf, math.inf)


def test_no_values_have_no_mean():
    with pytest.raises(ValueError, match=r"values have shape \(0,\)"):
        mean_interval(torch.empty(0))


def test_no_values_have_no_median():
    assert math.isnan(median_interval(torch.empty(0)).value)


def test_intervals_print_with_their_centre_first():
    assert str(Interval(0.5, 0.25, 0.75)) == "0.500 (0.250 to 0.750)"
    assert str(Estimate(0.5, 0.25, 0.75)) == "0.50 (0.25 to 0.75)"
    assert str(median_interval(torch.ones(5))) == "1.00 (no interval)"


def test_four_times_as_many_images_halve_the_interval_of_a_median():
    draws = torch.randn(60, 400, generator=torch.Generator().manual_seed(0))
    few, many = ([median_interval(row[:count]) for row in draws] for count in (100, 400))
    widths = [sum(estimate.high - estimate.low for estimate in estimates) for estimates in (few, many)]
    assert widths[1] == pytest.approx(widths[0] / 2, rel=0.1)
    low, high = median_of_more(Estimate(0.0, -0.2, 0.1), images=100, more=400)[1:]
    assert (low, high) == (-0.1, 0.05)


def needed_for_median(estimate, images, confidence):
    def decides(count):
        _, low, high = median_of_more(estimate, images, count)
        return low > 0 or high < 0

    return images_needed(decides, images, confidence)


@pytest.mark.parametrize("confidence", [0.95, 0.998])
def test_if_the_median_is_right_the_images_called_for_decide_in_four_of_five_cases(confidence):
    generator = torch.Generator().manual_seed(0)
    decided = 0
    for _ in range(200):
        pilot = median_interval(torch.randn(41, generator=generator), confidence)
        moved = Estimate(*(number - pilot.value + 0.2 for number in pilot))  # to the median of the population
        needed = needed_for_median(moved, 41, confidence)
        decided += median_interval(0.2 + torch.randn(needed, generator=generator), confidence).low > 0
    assert 0.7 * 200 < decided < 0.9 * 200


def test_if_the_share_is_right_the_images_called_for_decide_in_four_of_five_cases():
    needed = images_needed(lambda n: exact_share_interval(round(n / 5), round(n)).low > 0.1, 40, 0.95)
    generator = torch.Generator().manual_seed(0)
    counts = (torch.rand(200, needed, generator=generator) < 0.2).sum(dim=1).tolist()
    assert 0.7 * 200 < sum(exact_share_interval(count, needed).low > 0.1 for count in counts) < 0.95 * 200


def test_with_the_values_of_few_images_the_number_called_for_still_decides_in_most_cases():
    generator = torch.Generator().manual_seed(0)
    decided = []
    for _ in range(100):
        pilot = median_interval(0.3 + torch.randn(31, generator=generator))
        if not pilot.low > 0 and (needed := needed_for_median(pilot, 31, 0.95)) and needed < 10_000:
            found = median_interval(0.3 + torch.randn(needed, generator=generator))
            decided.append(found.low > 0)
    assert len(decided) > 50
    assert sum(decided) > 0.6 * len(decided)


def test_no_number_of_images_decides_what_is_exactly_at_the_threshold():
    assert needed_for_median(Estimate(0.0, -0.2, 0.1), 41, 0.95) is None


def median_over_seeds(values, confidence):
    return widened(median_interval(values.mean(dim=0), confidence), spread_of_seeds(values, confidence))


@pytest.mark.parametrize(("of_images", "of_seeds"), [(1.0, 0.0), (1.0, 2.0), (0.2, 1.0)])
@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_of_200_medians_over_seeds_no_more_than_the_level_lie_outside(of_images, of_seeds, confidence):
    generator = torch.Generator().manual_seed(0)
    missed = 0
    for _ in range(200):
        images, seeds, both = (torch.randn(shape, generator=generator) for shape in ((1, 41), (5, 1), (5, 41)))
        found = median_over_seeds(of_images * images + of_seeds * seeds + both, confidence)
        missed += not found.low <= 0 <= found.high
    assert missed <= stats.binom.ppf(0.99, 200, 1 - confidence)


def test_seeds_that_agree_add_nothing_and_one_seed_decides_nothing():
    values = torch.arange(103.0)
    assert spread_of_seeds(values.expand(5, -1)) == 0
    assert widened(median_interval(values), 0.0) == median_interval(values)
    assert spread_of_seeds(torch.rand(1, 103)) == math.inf
    assert widened(median_interval(values), math.inf)[1:] == (-math.inf, math.inf)


def test_an_interval_over_clusters_holds_where_one_over_images_does_not():
    generator = torch.Generator().manual_seed(0)
    missed = {"images": 0, "clusters": 0}
    clusters = torch.arange(120) // 10
    for _ in range(200):
        frames = torch.randn(12, generator=generator)[clusters] + 0.3 * torch.randn(120, generator=generator)
        for name, values in (("images", frames), ("clusters", mean_of_clusters(frames, clusters))):
            found = mean_interval(values)
            missed[name] += not found.low <= 0 <= found.high
    assert missed["clusters"] <= stats.binom.ppf(0.99, 200, 0.05) < missed["images"]


def test_half_hits_have_an_interval_no_narrower_than_that_of_their_share():
    assert exact_share_interval(2.5, 10).value == 0.25
    assert exact_share_interval(2, 10).low < exact_share_interval(2.5, 10).low < exact_share_interval(3, 10).low
