"""Held-out images."""

import pytest
import torch

from vit.data.split import stratified_split

CLASS_SIZES = [7, 13, 23]
LABELS = torch.tensor([0] * 7 + [1] * 13 + [2] * 23)[torch.randperm(43, generator=torch.Generator().manual_seed(0))]
HELD_OUT = [2, 4, 6, 7, 9, 17, 24, 32, 42]  # a fifth of each class


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.2, 0.5, 0.9])
def test_the_same_share_of_every_class_is_held_out(fraction):
    _, held_out = stratified_split(LABELS, fraction)
    assert LABELS[held_out].bincount(minlength=3).tolist() == [round(fraction * size) for size in CLASS_SIZES]


# Sums of the indices held out by the first version of this package.
@pytest.mark.parametrize(("fraction", "count", "total"), [(0.04, 2000, 51313610), (0.1, 5000, 127218490)])
def test_a_large_balanced_set_is_split_as_ever(fraction, count, total):
    _, held_out = stratified_split(torch.arange(50_000) * 7919 % 10, fraction)
    assert (len(held_out), int(held_out.sum())) == (count, total)


@pytest.mark.parametrize(("size", "fraction", "expected"), [(2, 0.1, 1), (3, 0.01, 1), (1, 0.5, 0), (2, 0.9, 1)])
def test_of_a_small_class_at_least_one_image_is_held_out_and_one_kept(size, fraction, expected):
    kept, held_out = stratified_split(torch.zeros(size), fraction)
    assert (len(kept), len(held_out)) == (size - expected, expected)


@pytest.mark.parametrize(("size", "expected"), [(1, 0), (2, 0), (3, 1), (4, 2)])
def test_more_images_of_a_class_may_be_kept(size, expected):
    _, held_out = stratified_split(torch.zeros(size), 0.5, keep=2)
    assert len(held_out) == expected


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.9])
def test_every_image_is_in_exactly_one_sorted_part(fraction):
    kept, held_out = (part.tolist() for part in stratified_split(LABELS, fraction))
    assert sorted(kept + held_out) == list(range(43))
    assert (kept, held_out) == (sorted(kept), sorted(held_out))
    assert bool(held_out) == (fraction > 0)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_held_out_images_never_change_whatever_was_drawn_before(seed):
    torch.manual_seed(seed)
    assert stratified_split(LABELS, 0.2)[1].tolist() == HELD_OUT


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 1.5, float("nan")])
def test_a_fraction_outside_zero_to_one_is_an_error(fraction):
    with pytest.raises(ValueError, match=rf"^the held-out fraction \({fraction}\) must be in \[0, 1\)"):
        stratified_split(LABELS, fraction)
