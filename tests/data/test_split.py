"""Held-out images."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vit.data.split import fold_numbers, stratified_split

CLASS_SIZES = [7, 13, 23]
LABELS = torch.tensor([0] * 7 + [1] * 13 + [2] * 23)[torch.randperm(43, generator=torch.Generator().manual_seed(0))]
HELD_OUT = [2, 4, 6, 7, 9, 17, 24, 32, 42]  # a fifth of each class
HELD_OUT_GROUPS = [24, 25, 26, 36, 37, 38, 42]  # of groups of three images
FOLDS = "1221001022220120110122000102001220111002121"
FOLDS_OF_GROUPS = "1112221110000000002222221112221110002220001"


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


@st.composite
def grouped(draw):
    """Labels and groups of images: classes cross groups, or each group is of one class."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=2, max_size=13))
    groups = torch.repeat_interleave(torch.arange(len(sizes)) * 7 % 101, torch.tensor(sizes))
    classes = draw(st.integers(1, 4))
    of_groups = draw(st.lists(st.integers(0, classes - 1), min_size=len(sizes), max_size=len(sizes)))
    labels = torch.repeat_interleave(torch.tensor(of_groups), torch.tensor(sizes))
    if draw(st.booleans()):
        labels = (labels + torch.arange(len(labels))) % classes
    return labels, groups


@settings(max_examples=50)
@given(grouped(), st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.9]), st.sampled_from([1, 2]))
def test_no_group_is_on_both_sides_of_a_split_and_each_class_keeps_groups(images, fraction, keep):
    labels, groups = images
    kept, held_out = stratified_split(labels, fraction, keep, groups)
    assert sorted(kept.tolist() + held_out.tolist()) == list(range(len(labels)))
    assert not set(groups[kept].tolist()) & set(groups[held_out].tolist())
    for label in labels.unique():
        every = groups[labels == label].unique()
        left = groups[kept][labels[kept] == label].unique()
        assert len(left) >= min(keep, len(every))
        if fraction == 0:
            assert len(left) == len(every)


def test_groups_hold_out_the_same_share_of_every_class_as_nearly_as_they_can():
    groups = torch.arange(101).repeat_interleave(7)
    labels = (groups * 3 + torch.arange(len(groups)) % 2) % 5
    _, held_out = stratified_split(labels, 0.2, groups=groups)
    shares = labels[held_out].bincount() / labels.bincount()
    assert ((shares - 0.2).abs() < 0.04).all()
    # One group of 60 images is not taken for a share of 8.
    sizes = torch.tensor([60, 4, 4, 4, 4, 4])
    _, held_out = stratified_split(torch.zeros(80).long(), 0.1, groups=torch.arange(6).repeat_interleave(sizes))
    assert len(held_out) == 8


def test_of_each_class_that_has_two_groups_one_is_held_out():
    labels = torch.tensor([0] * 20 + [1] * 3 + [2] * 2)
    groups = torch.tensor([*[number // 2 for number in range(20)], 20, 21, 21, 30, 30])
    kept, held_out = stratified_split(labels, 0.1, groups=groups)
    assert labels[held_out].bincount(minlength=3).tolist() == [2, 1, 0]
    assert labels[kept].unique().tolist() == [0, 1, 2]


def test_groups_of_images_of_several_labels_leave_each_label_an_image():
    labels = torch.tensor([[1.0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 1], [0, 0, 0], [0, 0, 0]])
    groups = torch.tensor([5, 5, 6, 7, 8, 9])
    kept, held_out = stratified_split(labels, 0.5, groups=groups)
    assert labels[kept].any(dim=0).all()
    assert labels[held_out].any(dim=0).tolist() == [True, False, True]
    assert not set(groups[kept].tolist()) & set(groups[held_out].tolist())


@pytest.mark.parametrize("seed", [1, 2])
def test_groups_and_folds_never_change_whatever_was_drawn_before(seed):
    torch.manual_seed(seed)
    groups = torch.arange(43) // 3
    assert stratified_split(LABELS, 0.2, groups=groups)[1].tolist() == HELD_OUT_GROUPS
    assert fold_numbers(LABELS, 3).tolist() == [int(fold) for fold in FOLDS]
    assert fold_numbers(LABELS, 3, groups).tolist() == [int(fold) for fold in FOLDS_OF_GROUPS]


@pytest.mark.parametrize("folds", [2, 3, 5, 7])
def test_folds_have_the_same_share_of_every_class(folds):
    counts = [LABELS[fold_numbers(LABELS, folds) == fold].bincount(minlength=3) for fold in range(folds)]
    spread = torch.stack(counts).amax(dim=0) - torch.stack(counts).amin(dim=0)
    assert (spread <= 1).all()
    assert sum(counts).tolist() == CLASS_SIZES


@settings(max_examples=50)
@given(grouped(), st.integers(2, 5))
def test_a_group_is_in_one_fold_and_no_fold_is_empty(images, folds):
    labels, groups = images
    if folds > min(len(groups.unique()), int(labels.bincount().max())):
        with pytest.raises(ValueError, match=rf"^folds \({folds}\) must be at most the number of"):
            fold_numbers(labels, folds, groups)
        return
    numbers = fold_numbers(labels, folds, groups)
    assert numbers.unique().tolist() == list(range(folds))
    assert all(len(numbers[groups == group].unique()) == 1 for group in groups.unique())


def test_more_folds_than_groups_or_images_are_an_error_with_both_numbers():
    with pytest.raises(ValueError, match=r"^folds \(5\) must be at most the number of groups, 3$"):
        fold_numbers(torch.zeros(43).long(), 5, torch.arange(43) % 3)
    with pytest.raises(ValueError, match=r"^folds \(24\) must be at most the number of images of the most frequent"):
        fold_numbers(LABELS, 24)
