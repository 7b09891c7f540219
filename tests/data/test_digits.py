"""The handwritten digits of scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from vit.data import Digits


def ready(**kwargs):
    data = Digits(**kwargs)
    data.setup("fit")
    return data.sets


@pytest.fixture(scope="module")
def sets():
    return ready()


def rows(part):
    """Each image with its label as one hashable value."""
    return [(*image.flatten().tolist(), label) for image, label in zip(part.images, part.labels.tolist(), strict=True)]


def test_the_images_are_those_of_scikit_learn_with_levels_to_255(sets):
    digits = load_digits()
    expected = [
        (*image, label)
        for image, label in zip(
            np.rint(digits.data * 255 / 16).astype(int).tolist(), digits.target.tolist(), strict=True
        )
    ]
    assert sorted(row for part in sets.values() for row in rows(part)) == sorted(expected)


def test_the_images_are_grey_and_8_by_8(sets):
    for part in sets.values():
        assert part.images.shape == (len(part.labels), 1, 8, 8)
        assert part.images.dtype == torch.uint8
        assert part.images.amin() == 0
        assert part.images.amax() == 255


@pytest.mark.parametrize(
    ("val_fraction", "counts"), [(0.1, {"train": 1295, "val": 143, "test": 359}), (0.0, {"train": 1438, "test": 359})]
)
def test_the_1797_digits_are_split_into_a_fifth_for_test_and_a_share_of_the_rest_for_validation(val_fraction, counts):
    assert {stage: len(part.labels) for stage, part in ready(val_fraction=val_fraction).items()} == counts


def test_every_digit_is_held_out_in_the_same_share(sets):
    of_all = np.bincount(load_digits().target)
    for_test = sets["test"].labels.bincount().tolist()
    assert for_test == [round(0.2 * count) for count in of_all]
    for_training = of_all - for_test
    assert sets["val"].labels.bincount().tolist() == [round(0.1 * count) for count in for_training]


def test_the_splits_are_the_same_whatever_the_seed(sets):
    other = ready(seed=1)
    assert all(torch.equal(sets[stage].images, other[stage].images) for stage in ("train", "val", "test"))


def test_no_image_is_in_two_splits(sets):
    images = {stage: {row[:-1] for row in rows(part)} for stage, part in sets.items()}
    assert not images["train"] & images["val"]
    assert not images["train"] & images["test"]
    assert not images["val"] & images["test"]


@pytest.mark.parametrize("stage", ["train", "val", "test"])
def test_the_mean_and_deviation_are_those_of_the_pixels(sets, stage):
    pixels = sets[stage].images / 255
    assert pixels.mean().item() == pytest.approx(Digits.mean[0], abs=0.005)
    assert pixels.std().item() == pytest.approx(Digits.std[0], abs=0.005)


def test_the_classes_are_the_ten_digits():
    assert Digits.class_names == ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
    assert Digits.num_classes == 10
    assert Digits.image_size == (8, 8)
    assert Digits.in_channels == 1


def test_every_digit_is_in_the_test_of_one_fold(sets):
    tested = [ready(folds=3, fold=fold)["test"] for fold in range(3)]
    assert sorted(row for part in tested for row in rows(part)) == sorted(
        row for part in sets.values() for row in rows(part)
    )
    assert sorted(int(number) for part in tested for number in part.files) == [*range(1797)]


def test_images_that_a_data_set_changes_are_unchanged_in_the_next():
    Digits(folds=3, fold=0).load_sets()["train"].images.zero_()
    assert Digits(folds=3, fold=0).load_sets()["train"].images.any()
