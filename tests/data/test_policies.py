"""RandAugment and TrivialAugment on whole batches, against torchvision's on one image."""

import math

import pytest
import torch
from einops import repeat
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from vit.data.policies import BatchPolicy, RandAugment, TrivialAugment

SHAPES = [(3, 11, 17), (1, 13, 7), (3, 19, 19)]


def outcomes(images):
    """The distinct images of a batch, one per row."""
    return images.flatten(1).unique(dim=0).float()


def is_among(images, others):
    """Whether each of some images is another, up to a grey level."""
    return torch.cdist(images, others, p=math.inf).min(dim=1).values <= 1


@pytest.mark.parametrize("magnitude", [9, 23])
def test_randaugment_does_all_that_torchvisions_does_and_nothing_else(magnitude, noise):
    image = noise(1, 3, 11, 17)
    ours = outcomes(RandAugment(num_ops=1, magnitude=magnitude)(image.expand(997, -1, -1, -1)))
    torchvisions = v2.RandAugment(num_ops=1, magnitude=magnitude)
    theirs = outcomes(torch.stack([torchvisions(image[0]) for _ in range(397)]))
    assert is_among(ours, theirs).all()
    assert is_among(theirs, ours).all()


def test_trivialaugment_does_all_that_torchvisions_does_with_32_pixels(noise):
    image = noise(1, 1, 32, 32).clamp(1, 254)
    image += image % 17 == 0  # where the threshold of solarize may be a grey level, rounding decides
    ours = outcomes(TrivialAugment()(image.expand(9_973, -1, -1, -1)))
    torchvisions = v2.TrivialAugmentWide()
    theirs = outcomes(torch.stack([torchvisions(image[0]) for _ in range(397)]))
    # Half of 32 pixels comes out as 15.999999 in torchvision, and is cut to 15.
    half = (
        torch.cat(
            [tv.affine(image, 0.0, list(shift), 1.0, [0.0, 0.0]) for shift in ((15, 0), (-15, 0), (0, 15), (0, -15))]
        )
        .flatten(1)
        .float()
    )
    assert is_among(theirs, torch.cat([ours, half])).all()


@pytest.mark.parametrize("policy", [RandAugment(), TrivialAugment()])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_policy_keeps_type_and_shape_and_the_images_it_was_given(policy, shape, noise):
    images = noise(97, *shape)
    before = images.clone()
    results = policy(images)
    assert results.dtype == torch.uint8
    assert results.shape == images.shape
    assert torch.equal(images, before)
    assert not torch.equal(results, images)


@pytest.mark.parametrize("policy", [RandAugment(), TrivialAugment()])
def test_each_image_draws_an_operation_of_its_own(policy, noise):
    copies = repeat(noise(1, 3, 11, 17), "1 c h w -> b c h w", b=97)
    assert len(outcomes(policy(copies))) > 20


@pytest.mark.parametrize("policy", [RandAugment(), TrivialAugment()])
def test_the_same_seed_repeats_a_policy(policy, noise):
    images = noise(97, 3, 11, 17)
    torch.manual_seed(1)
    first = policy(images)
    torch.manual_seed(1)
    assert torch.equal(policy(images), first)


def levels(num_ops, magnitude):
    """What becomes of the grey level 100 where the only operation is brightness."""
    policy = BatchPolicy({"brightness": 0.5}, num_ops=num_ops, magnitude=magnitude)
    return policy(torch.full((997, 1, 1, 1), 100, dtype=torch.uint8)).unique().tolist()


def test_one_operation_is_applied_with_either_sign_or_not_at_all():
    assert levels(num_ops=1, magnitude=30) == [50, 100, 150]


def test_two_operations_are_applied_one_after_the_other():
    assert levels(num_ops=2, magnitude=30) == [25, 50, 75, 100, 150, 225]


def test_magnitude_is_the_strength_in_thirtieths_of_the_strongest():
    assert levels(num_ops=1, magnitude=12) == [80, 100, 120]
    assert levels(num_ops=1, magnitude=0) == [100]


def test_no_magnitude_draws_one_for_each_image():
    expected = {100 + sign * 50 * level // 30 for level in range(31) for sign in (1, -1)}
    drawn = levels(num_ops=1, magnitude=None)
    assert len(drawn) == len(expected)
    assert all(min(abs(level - other) for other in expected) <= 1 for level in drawn)
