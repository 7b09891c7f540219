"""Two marks at a distance, found again in the pixels."""

from itertools import combinations

import pytest
import torch
from einops import rearrange

from vit.data import MarkPairs
from vit.data.mark_pairs import IMAGES, mark_pairs


@pytest.fixture(scope="module")
def pairs():
    return {stage: mark_pairs(stage) for stage in ("train", "val", "test")}


def marks(images):
    """Cell and kind of both marks of each image, (N, 2, 2): the only pixels that are bright, two side by side."""
    cells = rearrange(images, "n 1 h (c w) -> n c h w", w=2)
    left, right = ((cells[..., side] == 255).nonzero() for side in (0, 1))
    assert torch.equal(left, right)
    assert (left[:, 0] == torch.arange(len(images)).repeat_interleave(2)).all()
    return rearrange(left[:, 1:], "(n m) x -> n m x", m=2)


@pytest.mark.parametrize("stage", ["train", "val", "test"])
def test_each_image_has_two_marks_at_its_distance_which_agree_if_the_label_says_so(pairs, stage):
    images, labels, distances = pairs[stage]
    assert (images.shape, images.dtype, len(labels)) == ((IMAGES[stage], 1, 2, 32), torch.uint8, IMAGES[stage])
    first, second = marks(images).unbind(dim=1)
    assert torch.equal(second[:, 0] - first[:, 0], distances)
    assert torch.equal((first[:, 1] == second[:, 1]).long(), labels)


def test_every_distance_is_equally_frequent_and_half_of_its_marks_agree(pairs):
    _, labels, distances = pairs["test"]
    assert distances.bincount().tolist() == [0] + [400] * 15
    for distance in range(1, 16):
        assert labels[distances == distance].double().mean().item() == 0.5


def test_one_mark_alone_says_nothing_of_the_label(pairs):
    images, labels, _ = pairs["train"]
    for mark in marks(images).unbind(dim=1):
        for fact in mark.unbind(dim=1):
            for value in fact.unique():
                assert labels[fact == value].double().mean().item() == pytest.approx(0.5, abs=0.06)


def test_marks_are_in_every_cell(pairs):
    first, second = marks(pairs["train"][0]).unbind(dim=1)
    assert first[:, 0].unique().tolist() == list(range(15))
    assert second[:, 0].unique().tolist() == list(range(1, 16))


def test_the_data_module_has_these_images_whatever_the_seed(pairs):
    data = MarkPairs(seed=5)
    data.setup("fit")
    for stage, (images, labels, _) in pairs.items():
        assert torch.equal(data.sets[stage].images, images)
        assert torch.equal(data.sets[stage].labels, labels)
    without = MarkPairs(val_fraction=0.0)
    without.setup("fit")
    assert list(without.sets) == ["train", "test"]


def test_splits_share_no_image(pairs):
    seen = [{tuple(image) for image in images[:1500].flatten(1).tolist()} for images, _, _ in pairs.values()]
    assert all(one.isdisjoint(other) for one, other in combinations(seen, 2))


def test_the_mean_and_deviation_are_those_of_the_pixels(pairs):
    pixels = pairs["train"][0] / 255
    assert pixels.mean().item() == pytest.approx(MarkPairs.mean[0], abs=0.001)
    assert pixels.std().item() == pytest.approx(MarkPairs.std[0], abs=0.001)
