"""Handwritten digits at known positions in clutter."""

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange

from vit.data import Digits, PlantedDigits
from vit.data.planted import CANVASES_PER_DIGIT, planted_digits

STAGES = ("train", "val", "test")


@pytest.fixture(scope="module")
def planted():
    return {stage: planted_digits(stage) for stage in STAGES}


@pytest.fixture(scope="module")
def digits():
    data = Digits()
    data.setup("fit")
    return data.sets


def quarters(images):
    """The 4x4 patches of images on the patch grid, as hashable values, one list per image."""
    cells = rearrange(images, "n 1 (r h) (c w) -> n (r c) (h w)", h=4, w=4)
    return [[tuple(cell) for cell in image] for image in cells.tolist()]


def covered(boxes):
    """Which patches a box covers, (N, 8, 8)."""
    first, last = boxes[:, :2, None], (boxes[:, :2] + boxes[:, 2:])[:, :, None]
    cells = 4 * torch.arange(8)
    rows, columns = ((cells >= first) & (cells < last)).unbind(dim=1)
    return rows[:, :, None] & columns[:, None, :]


def cut_out(images, boxes):
    """The 8x8 pixels within each box, (N, 1, 8, 8)."""
    rows, columns = (boxes[:, axis, None] + torch.arange(8) for axis in (0, 1))
    return images[torch.arange(len(images))[:, None, None], 0, rows[:, :, None], columns[:, None]][:, None]


def filled(images):
    """Which patches are not empty, (N, 8, 8)."""
    return rearrange(images, "n 1 (r h) (c w) -> n r c (h w)", h=4, w=4).amax(dim=-1) > 0


def around(cells):
    """Cells and their eight neighbours, (N, 8, 8)."""
    return F.max_pool2d(cells.float(), 3, stride=1, padding=1) > 0


@pytest.mark.parametrize(
    ("stage", "copies", "ink"), [("train", 40, 664073499), ("val", 3, 5462286), ("test", 3, 13521615)]
)
def test_a_split_has_every_digit_on_several_canvases_that_never_change(planted, digits, stage, copies, ink):
    images, labels, boxes = planted[stage]
    count = len(digits[stage].labels) * copies
    assert (images.shape, images.dtype, boxes.shape) == ((count, 1, 32, 32), torch.uint8, (count, 4))
    assert torch.equal(labels, digits[stage].labels.repeat(copies))
    assert images.sum() == ink


@pytest.mark.parametrize("stage", STAGES)
def test_the_box_holds_exactly_the_digit_of_the_label(planted, digits, stage):
    images, _, boxes = planted[stage]
    whole = digits[stage].images.repeat(CANVASES_PER_DIGIT[stage], 1, 1, 1)
    assert torch.equal(cut_out(images, boxes), whole)


def test_boxes_are_everywhere_on_the_patch_grid_and_within_the_canvas(planted):
    boxes = planted["train"][2]
    assert (boxes[:, 2:] == 8).all()
    assert boxes[:, :2].unique().tolist() == [0, 4, 8, 12, 16, 20, 24]
    assert len(boxes.unique(dim=0)) == 49
    assert boxes[:, :2].float().mean().item() == pytest.approx(12, abs=0.05)


def test_every_patch_is_empty_or_a_quarter_of_a_digit_of_the_same_split(planted, digits):
    for stage in STAGES:
        known = {cell for image in quarters(digits[stage].images) for cell in image} | {(0,) * 16}
        assert {cell for image in quarters(planted[stage][0][:300]) for cell in image} <= known


@pytest.mark.parametrize("stage", STAGES)
def test_clutter_touches_neither_the_digit_nor_other_clutter(planted, stage):
    images, _, boxes = (part[:5000] for part in planted[stage])
    digit = covered(boxes)
    clutter = filled(images) & ~digit
    assert not (around(digit) & clutter).any()
    neighbours = F.avg_pool2d(clutter.float(), 3, stride=1, padding=1) * 9
    assert neighbours[clutter].max() == pytest.approx(1)


def test_every_patch_away_from_the_digit_is_clutter_with_a_probability_of_one_in_eight(planted):
    images, _, boxes = (part[:20000] for part in planted["train"])
    away = ~around(covered(boxes))
    shares = (filled(images) & away).sum(dim=0) / away.sum(dim=0)
    assert torch.allclose(shares, torch.full_like(shares, 1 / 8), atol=0.01)


def test_the_clutter_is_the_same_whatever_the_label(planted):
    images, labels, boxes = (part[:20000] for part in planted["train"])
    brightness = rearrange(images / 255, "n 1 (r h) (c w) -> n r c (h w)", h=4, w=4).mean(dim=-1)
    outside = ~covered(boxes)
    means = torch.stack([brightness[labels == digit][outside[labels == digit]].mean() for digit in range(10)])
    assert means.max() / means.min() < 1.05


def test_only_the_planted_digit_is_whole(planted, digits):
    images, _, boxes = planted["test"]
    whole = {tuple(image) for image in digits["test"].images.flatten(1).tolist()}
    windows = images[:, 0].unfold(1, 8, 4).unfold(2, 8, 4)
    for index, (row, column, _, _) in enumerate(boxes.tolist()):
        found = {
            place
            for place, pixels in enumerate(rearrange(windows[index], "r c h w -> (r c) (h w)").tolist())
            if tuple(pixels) in whole
        }
        assert found == {row // 4 * 7 + column // 4}


@pytest.mark.parametrize(("val_fraction", "stages"), [(0.1, STAGES), (0.0, ("train", "test"))])
def test_the_data_module_has_the_planted_digits_whatever_seed_and_random_state(
    planted, monkeypatch, val_fraction, stages
):
    monkeypatch.setitem(CANVASES_PER_DIGIT, "train", 1)
    torch.manual_seed(5)
    data = PlantedDigits(seed=1, val_fraction=val_fraction)
    data.setup("fit")
    assert tuple(data.sets) == stages
    assert len(data.sets["train"].labels) == (1295 if val_fraction else 1438)
    for stage in stages[1:]:
        assert torch.equal(data.sets[stage].images, planted[stage][0])
        assert torch.equal(data.sets[stage].labels, planted[stage][1])


def test_the_test_images_are_the_same_whatever_is_held_out_for_validation(planted):
    for mine, theirs in zip(planted_digits("test", val_fraction=0.3), planted["test"], strict=True):
        assert torch.equal(mine, theirs)


def test_a_missing_split_is_an_error():
    with pytest.raises(ValueError, match=r"^stage 'val' is none of train, test at val_fraction 0\.0"):
        planted_digits("val", val_fraction=0.0)


@pytest.mark.parametrize("stage", STAGES)
def test_the_mean_and_deviation_are_those_of_the_pixels(planted, stage):
    pixels = planted[stage][0][:5000] / 255
    assert pixels.mean().item() == pytest.approx(PlantedDigits.mean[0], abs=0.005)
    assert pixels.std().item() == pytest.approx(PlantedDigits.std[0], abs=0.005)


def test_folds_which_would_share_digits_are_refused():
    with pytest.raises(ValueError, match=r"^PlantedDigits has no folds, as several of its images show one digit"):
        PlantedDigits(folds=5, fold=0).setup("fit")
