"""Random draws for each image."""

import pytest
import torch

from vit.explain.maps.noise import draw_for_each


@pytest.fixture
def images():
    return torch.rand(200, 1, 3, 5, generator=torch.Generator().manual_seed(0))


def test_an_image_gets_the_same_numbers_in_any_batch_and_others_get_others(images):
    drawn = draw_for_each(images, (2, 7), 3)
    assert drawn.shape == (200, 2, 7)
    assert torch.equal(draw_for_each(images.flip(0)[:7], (2, 7), 3), drawn.flip(0)[:7])
    assert len(drawn.flatten(1).unique(dim=0)) == 200
    assert not torch.equal(draw_for_each(images[:7], (2, 7), 4), drawn[:7])
    assert torch.equal(draw_for_each(images[:7].double(), (2, 7), 3).float(), drawn[:7])


def test_the_mean_over_images_is_that_of_the_distribution_and_not_that_of_one_map(images):
    """A seed for each call would leave the mean of each patch as far from a half in many batches as in one."""
    batches = torch.cat([draw_for_each(batch, (2, 2), 0) for batch in images.split(2)])
    assert (batches.mean(dim=0) - 0.5).abs().max() < 4 * (1 / 12 / 200) ** 0.5
    normal = draw_for_each(images, (2, 2), 0, draw=torch.randn)
    assert 0.8 < normal.std() < 1.2


def test_images_with_a_gradient_get_numbers_without_one(images):
    drawn = draw_for_each(images[:2].requires_grad_(), (2, 2), 0)
    assert not drawn.requires_grad
