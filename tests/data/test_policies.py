"""RandAugment and TrivialAugment on whole batches, against torchvision's on one image."""

import math

import pytest
import torch
from einops import repeat
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from vit.data.policies import RANDAUGMENT, TRIVIALAUGMENT, BatchPolicy

POLICIES = [BatchPolicy(RANDAUGMENT, 2, 9), BatchPolicy(TRIVIALAUGMENT, 1, None)]


def outcomes(images):
    """The distinct images of a batch, one per row."""
    return images.flatten(1).unique(dim=0).float()


def is_among(images, others):
    """Whether each image equals one of the others, up to a grey level."""
    return torch.cdist(images, others, p=math.inf).min(dim=1).values <= 1


def test_randaugment_has_exactly_the_outcomes_of_torchvisions(noise):
    image = noise(1, 3, 11, 17)
    ours = outcomes(BatchPolicy(RANDAUGMENT, 1, 23)(image.expand(997, -1, -1, -1)))
    torchvisions = v2.RandAugment(num_ops=1, magnitude=23)
    theirs = outcomes(torch.stack([torchvisions(image[0]) for _ in range(297)]))
    assert is_among(ours, theirs).all()
    assert is_among(theirs, ours).all()


def test_trivialaugment_has_the_outcomes_of_torchvisions_with_32_pixels(noise):
    image = noise(1, 1, 32, 32).clamp(1, 254)
    image += image % 17 == 0  # no grey level is a threshold of solarize, where rounding would decide
    ours = outcomes(BatchPolicy(TRIVIALAUGMENT, 1, None)(image.expand(9_973, -1, -1, -1)))
    torchvisions = v2.TrivialAugmentWide()
    theirs = outcomes(torch.stack([torchvisions(image[0]) for _ in range(297)]))
    # In torchvision half of 32 pixels is 15.999999, truncated to 15.
    half = (
        torch.cat(
            [tv.affine(image, 0.0, list(shift), 1.0, [0.0, 0.0]) for shift in ((15, 0), (-15, 0), (0, 15), (0, -15))]
        )
        .flatten(1)
        .float()
    )
    assert is_among(theirs, torch.cat([ours, half])).all()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("shape", [(3, 11, 17), (1, 13, 7)])
def test_a_policy_keeps_dtype_and_shape_and_does_not_change_its_input(policy, shape, noise):
    images = noise(97, *shape)
    before = images.clone()
    results = policy(images)
    assert results.dtype == torch.uint8
    assert results.shape == images.shape
    assert torch.equal(images, before)
    assert not torch.equal(results, images)


@pytest.mark.parametrize("policy", POLICIES)
def test_each_image_draws_an_operation_of_its_own(policy, noise):
    copies = repeat(noise(1, 3, 11, 17), "1 c h w -> b c h w", b=97)
    assert len(outcomes(policy(copies))) > 20


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_repeats_a_policy(policy, noise):
    images = noise(97, 3, 11, 17)
    torch.manual_seed(1)
    first = policy(images)
    torch.manual_seed(1)
    assert torch.equal(policy(images), first)


def levels(num_ops, magnitude):
    """The outcomes of grey level 100 with the operations brightness and identity."""
    policy = BatchPolicy({"brightness": 0.5, "identity": 0.0}, num_ops=num_ops, magnitude=magnitude)
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
