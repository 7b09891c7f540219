"""Operations on whole batches, against torchvision's on one image."""

import math

import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from vit.data.operations import OPERATIONS, apply_operations
from vit.data.policies import STRENGTHS

SHAPES = [(3, 19, 23), (1, 13, 7)]  # more pixels than grey levels, and fewer
SIGNED = {name for name, (_, _, signed) in STRENGTHS.items() if signed}


def affine(image, translate=(0, 0), shear=(0.0, 0.0), center=None):
    shear = [math.degrees(math.atan(tangent)) for tangent in shear]
    return tv.affine(image, angle=0.0, translate=list(translate), scale=1.0, shear=shear, center=center)


# Each operation in terms of torchvision (as in v2.RandAugment), and strengths to compare at.
GEOMETRIC = {
    "shear_x": (lambda image, s: affine(image, shear=(s, 0.0), center=[0, 0]), (0.07, 0.23, 0.61)),
    "shear_y": (lambda image, s: affine(image, shear=(0.0, s), center=[0, 0]), (0.07, 0.23, 0.61)),
    "translate_x": (lambda image, s: affine(image, translate=(int(s * image.shape[2]), 0)), (0.11, 0.37, 0.83)),
    "translate_y": (lambda image, s: affine(image, translate=(0, int(s * image.shape[1]))), (0.11, 0.37, 0.83)),
    "rotate": (tv.rotate, (7.0, 41.0, 131.0)),
}
BLENDS = {
    "brightness": (lambda image, s: tv.adjust_brightness(image, 1 + s), (0.13, 0.57, 0.97)),
    "color": (lambda image, s: tv.adjust_saturation(image, 1 + s), (0.13, 0.57, 0.97)),
    "contrast": (lambda image, s: tv.adjust_contrast(image, 1 + s), (0.13, 0.57, 0.97)),
    "sharpness": (lambda image, s: tv.adjust_sharpness(image, 1 + s), (0.13, 0.57, 0.97)),
}
LEVELS = {
    "posterize": (lambda image, s: tv.posterize(image, 8 - round(s)), (0.4, 1.7, 4.2, 6.0)),
    "solarize": (lambda image, s: tv.solarize(image, 255 * (1 - s)), (0.13, 0.57, 1.0)),
    "autocontrast": (lambda image, s: tv.autocontrast(image), (0.0, 0.5)),
    "equalize": (lambda image, s: tv.equalize(image), (0.0, 0.5)),
}


def operate(images, names, strength):
    """Apply to each image the operation of this name."""
    return apply_operations(images, torch.tensor([OPERATIONS.index(name) for name in names]), strength)


def one_per_strength(name, reference, strengths, shape, noise):
    """An operation on a batch, with one strength per image, and torchvision's on each image."""
    signed = [sign * strength for strength in strengths for sign in ((1, -1) if name in SIGNED else (1,))]
    images = noise(len(signed), *shape)
    results = operate(images, [name] * len(images), torch.tensor(signed))
    expected = [reference(image, strength) for image, strength in zip(images, signed, strict=True)]
    assert results.dtype == torch.uint8
    return results, torch.stack(expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", GEOMETRIC)
def test_a_geometric_operation_is_exactly_torchvisions(name, shape, noise):
    results, expected = one_per_strength(name, *GEOMETRIC[name], shape, noise)
    assert torch.equal(results, expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", BLENDS)
def test_a_blend_is_torchvisions_up_to_a_grey_level(name, shape, noise):
    results, expected = one_per_strength(name, *BLENDS[name], shape, noise)
    assert (results.int() - expected.int()).abs().max() <= 1
    # Products are rounded in another order. A wrong degenerate picture would change far more pixels.
    assert (results != expected).float().mean() < 0.1


def test_solarize_inverts_the_level_at_its_edge_and_those_above():
    image = torch.tensor([0, 101, 102, 103, 254, 255], dtype=torch.uint8).expand(1, 3, 1, 6)
    inverted = [0, 101, 153, 152, 1, 0]  # from 255 * (1 - 0.6) = 102 on
    assert operate(image, ["solarize"], torch.tensor([0.6]))[0, 0, 0].tolist() == inverted
    assert operate(image, ["solarize"], torch.tensor([0.0]))[0, 0, 0].tolist() == [0, 101, 102, 103, 254, 0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", LEVELS)
def test_an_operation_on_levels_is_exactly_torchvisions(name, shape, noise):
    results, expected = one_per_strength(name, *LEVELS[name], shape, noise)
    assert torch.equal(results, expected)


def test_every_operation_is_compared():
    assert GEOMETRIC.keys() | BLENDS.keys() | LEVELS.keys() | {"identity"} == set(OPERATIONS)
    assert GEOMETRIC.keys() | BLENDS.keys() == SIGNED


@pytest.mark.parametrize("shape", SHAPES)
def test_an_operation_of_strength_zero_changes_nothing(shape, noise):
    names = [*GEOMETRIC, *BLENDS, "posterize"]
    images = noise(len(names), *shape)
    assert torch.equal(operate(images, names, torch.zeros(len(names))), images)


def test_the_operations_of_a_batch_are_independent(noise):
    names = [name for name in OPERATIONS for _ in range(2)]
    order = torch.randperm(len(names)).tolist()
    names = [names[image] for image in order]
    images, strength = noise(len(names), 3, 11, 17), 0.9 * torch.rand(len(names))
    alone = [operate(images[[image]], [name], strength[[image]]) for image, name in enumerate(names)]
    assert torch.equal(operate(images, names, strength), torch.cat(alone))


@pytest.mark.parametrize("pixels", [1, 3 * 11 * 17])
def test_operations_in_chunks_equal_those_on_the_whole_batch(pixels, noise, monkeypatch):
    names = [name for name in OPERATIONS for _ in range(2)]
    images, strength = noise(len(names), 3, 11, 17), 0.9 * torch.rand(len(names))
    together = operate(images, names, strength)
    monkeypatch.setattr("vit.data.operations.CHUNK_PIXELS", pixels)
    assert torch.equal(operate(images, names, strength), together)


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 2, 5), (3, 5, 2)])
def test_every_operation_accepts_images_of_few_pixels(shape, noise):
    images = noise(len(OPERATIONS), *shape)
    assert operate(images, OPERATIONS, torch.full((len(OPERATIONS),), 0.3)).shape == images.shape


def test_identity_changes_nothing(noise):
    images = noise(5, 3, 11, 17)
    assert torch.equal(operate(images, ["identity"] * 5, torch.ones(5)), images)


@pytest.mark.parametrize("name", ["shear_x", "shear_y"])
def test_of_two_equally_near_pixels_torchvisions_choice_is_taken(name, noise):
    results, expected = one_per_strength(name, GEOMETRIC[name][0], (0.2, 0.12), (3, 32, 32), noise)
    assert torch.equal(results, expected)


@pytest.mark.parametrize("name", ["autocontrast", "equalize"])
def test_a_channel_of_one_level_stays_as_it_is(name, noise):
    images = noise(2, 3, 19, 19)
    images[0, 1] = 77
    results = operate(images, [name] * 2, torch.zeros(2))
    assert (results[0, 1] == 77).all()
    assert torch.equal(results, torch.stack([LEVELS[name][0](image, 0.0) for image in images]))
