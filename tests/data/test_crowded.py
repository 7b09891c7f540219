"""A digit that decides among digits that do not."""

import pytest
import torch
from einops import rearrange, reduce

from vit import VisionTransformer
from vit.data import CrowdedDigits, Digits, PlantedDigits
from vit.data.crowded import CANVASES_PER_DIGIT, DECIDING, as_dark, crowded_digits
from vit.data.planted import planted_digits
from vit.explain.evaluation.ground_truth import cells_of_boxes, energy_inside, intersection_over_union, pointing_game
from vit.explain.maps import CONTROLS, Subject, signed_map

STAGES = ("train", "val", "test")
CHANCE = 1 / 16


@pytest.fixture(scope="module")
def crowded():
    return {stage: crowded_digits(stage) for stage in STAGES}


@pytest.fixture(scope="module")
def digits():
    data = Digits()
    data.setup("fit")
    return data.sets


def tiles(images):
    """The sixteen digits of images, (N, 16, 64)."""
    return rearrange(images, "n 1 (r h) (c w) -> n (r c) (h w)", h=8, w=8)


def places(boxes):
    """The numbers of the tiles that decide, (N,)."""
    return boxes[:, 0] // 8 * 4 + boxes[:, 1] // 8


@pytest.mark.parametrize(
    ("stage", "copies", "ink"), [("train", 40, 2057697590), ("val", 6, 34866715), ("test", 6, 84916604)]
)
def test_a_split_has_every_digit_that_decides_on_several_canvases_that_never_change(
    crowded, digits, stage, copies, ink
):
    images, labels, boxes = crowded[stage]
    deciding = torch.isin(digits[stage].labels, torch.tensor(DECIDING))
    assert CANVASES_PER_DIGIT[stage] == copies
    assert (images.shape, images.dtype) == ((copies * int(deciding.sum()), 1, 32, 32), torch.uint8)
    assert torch.equal(torch.tensor(DECIDING)[labels], digits[stage].labels[deciding].repeat(copies))
    assert images.sum() == ink
    shown = tiles(images)[torch.arange(len(images)), places(boxes)]
    assert torch.equal(shown, digits[stage].images[deciding].flatten(1).repeat(copies, 1))


@pytest.mark.parametrize("stage", STAGES)
def test_all_other_digits_are_of_the_same_split_and_of_classes_that_do_not_decide(crowded, digits, stage):
    images, _, boxes = (part[:300] for part in crowded[stage])
    of_class = {
        tuple(image): label
        for image, label in zip(digits[stage].images.flatten(1).tolist(), digits[stage].labels.tolist(), strict=True)
    }
    for image, place in zip(tiles(images).tolist(), places(boxes).tolist(), strict=True):
        shown = [of_class[tuple(tile)] for tile in image]
        assert [number for number, label in enumerate(shown) if label in DECIDING] == [place]


def test_the_digit_that_decides_is_anywhere_equally_often(crowded):
    counts = places(crowded["train"][2]).bincount(minlength=16)
    assert torch.allclose(counts / counts.sum(), torch.full((16,), CHANCE), atol=0.006)


def test_the_others_have_as_much_ink_whatever_the_class(crowded):
    images, labels, boxes = crowded["train"]
    ink = reduce(tiles(images).float(), "n k x -> n k", "mean") / 255
    own = ink[torch.arange(len(ink)), places(boxes)]
    others = (ink.sum(dim=1) - own) / 15
    for label in range(5):
        chosen = labels == label
        assert own[chosen].mean().item() == pytest.approx(others[chosen].mean().item(), abs=0.01)
    assert torch.corrcoef(torch.stack([own, others]))[0, 1] > 0.9


def test_of_few_digits_those_that_there_are_are_drawn():
    few = torch.arange(3, dtype=torch.uint8)[:, None, None, None].expand(3, 1, 8, 8)
    drawn = as_dark(few[:1], few, 50, torch.Generator().manual_seed(0))
    assert drawn.shape == (1, 50, 1, 8, 8)
    assert drawn.unique().tolist() == [0, 1, 2]


@pytest.mark.parametrize("control", CONTROLS)
def test_a_map_of_the_image_alone_finds_the_digit_about_as_often_as_chance(crowded, control):
    images, _, boxes = crowded["test"]
    model = VisionTransformer(32, 4, 1, embed_dim=12, depth=1, num_heads=1, num_classes=5).eval()
    pixels = (images / 255 - CrowdedDigits.mean[0]) / CrowdedDigits.std[0]
    maps, masks = signed_map(control, Subject(model, pixels)), cells_of_boxes(boxes, (32, 32), (8, 8))
    assert pointing_game(maps, masks).mean().item() == pytest.approx(CHANCE, abs=0.02)
    assert energy_inside(maps, masks).mean().item() == pytest.approx(CHANCE, abs=0.005)
    assert intersection_over_union(maps, masks).mean().item() == pytest.approx(0.034, abs=0.011)


@pytest.mark.parametrize("stage", STAGES)
def test_the_mean_and_deviation_are_those_of_the_pixels(crowded, stage):
    pixels = crowded[stage][0][:5000] / 255
    assert pixels.mean().item() == pytest.approx(CrowdedDigits.mean[0], abs=0.005)
    assert pixels.std().item() == pytest.approx(CrowdedDigits.std[0], abs=0.005)


@pytest.mark.parametrize(("val_fraction", "stages"), [(0.1, STAGES), (0.0, ("train", "test"))])
def test_the_data_module_has_the_same_images_whatever_seed_and_random_state(crowded, monkeypatch, val_fraction, stages):
    monkeypatch.setitem(CANVASES_PER_DIGIT, "train", 1)
    torch.manual_seed(5)
    data = CrowdedDigits(seed=1, val_fraction=val_fraction)
    data.setup("fit")
    assert tuple(data.sets) == stages
    for stage in stages[1:]:
        assert torch.equal(data.sets[stage].images, crowded[stage][0])
        assert torch.equal(data.sets[stage].labels, crowded[stage][1])


def test_folds_which_would_share_digits_are_refused():
    with pytest.raises(ValueError, match=r"^CrowdedDigits has no folds, as several of its images show one digit"):
        CrowdedDigits(folds=5, fold=0).setup("fit")


def test_of_a_digit_in_clutter_ink_alone_tells_the_place():
    images, _, boxes = planted_digits("test")
    model = VisionTransformer(32, 4, 1, embed_dim=12, depth=1, num_heads=1, num_classes=10).eval()
    pixels = (images / 255 - PlantedDigits.mean[0]) / PlantedDigits.std[0]
    maps, masks = signed_map("ink", Subject(model, pixels)), cells_of_boxes(boxes, (32, 32), (8, 8))
    assert pointing_game(maps, masks).mean() > 0.99
