"""Bits per pixel of a model and of the baselines, by hand."""

import math

import pytest
import torch

from vit.objectives.complete.evaluation import CompletionEvaluation, PixelStatistics, count_pixels

NONE = torch.zeros(1, 1, 3, dtype=torch.bool)
PIXELS = torch.tensor([[[0, 1, 1], [2, 2, 0]]])


def test_pixels_are_counted_with_the_pixel_to_their_left():
    counts = count_pixels(PIXELS, 3)
    assert counts.tolist() == [[1, 0, 1], [0, 1, 0], [0, 1, 0], [1, 0, 1]]


def test_the_baselines_are_the_shares_of_the_training_pixels():
    losses = PixelStatistics(count_pixels(PIXELS, 3)).losses(torch.tensor([[[0, 1, 2]]]), NONE)
    assert losses["uniform"][0, 0].tolist() == pytest.approx([math.log(3)] * 3)
    assert losses["histogram"][0, 0].tolist() == pytest.approx([math.log(9 / 3)] * 3)  # each colour twice, and one more
    expected = [math.log(5 / 2), math.log(4 / 2), math.log(4 / 1)]  # first column; right of 0; right of 1
    assert losses["left neighbour"][0, 0].tolist() == pytest.approx(expected)


def test_a_hidden_neighbour_tells_the_baseline_nothing():
    hidden = torch.tensor([[[False, True, True]]])  # the first is seen by the second
    losses = PixelStatistics(count_pixels(PIXELS, 3)).losses(torch.tensor([[[0, 1, 2]]]), hidden)
    expected = [math.log(5 / 2), math.log(4 / 2), math.log(9 / 3)]
    assert losses["left neighbour"][0, 0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("area", [1, 4])
def test_bits_are_the_mean_of_the_counted_pixels(area):
    evaluation = CompletionEvaluation(PixelStatistics(count_pixels(PIXELS, 3)), area, torch.device("cpu"))
    logits = torch.tensor([0.5, 0.25, 0.25]).log().expand(1, 2, 3, 3)
    counted = torch.tensor([[[True, True, False], [False, False, True]]])  # colours 0, 1 and 0
    evaluation.update(logits, PIXELS, counted, torch.zeros_like(counted))
    scores = evaluation.scores()
    assert scores["bits_per_pixel"] == pytest.approx((1 + 2 + 1) / 3 / area)
    assert scores["baselines"]["uniform"] == pytest.approx(math.log2(3) / area)
    assert (scores["accuracy"], scores["count"]) == (2 / 3, 1)
    assert evaluation.loss == pytest.approx(4 / 3 * math.log(2))


def test_batches_sum_up():
    statistics = PixelStatistics(count_pixels(PIXELS, 3))
    pixels, logits = torch.randint(0, 3, (7, 2, 3)), torch.randn(7, 2, 3, 3)
    counted = torch.rand(7, 2, 3) < 0.7
    whole, parts = (CompletionEvaluation(statistics, 1, torch.device("cpu")) for _ in range(2))
    whole.update(logits, pixels, counted, counted)
    for rows in (slice(0, 3), slice(3, 7)):
        parts.update(logits[rows], pixels[rows], counted[rows], counted[rows])
    for one, other in zip(whole.sums(), parts.sums(), strict=True):
        torch.testing.assert_close(one, other)
