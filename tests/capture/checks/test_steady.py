"""Logits that change between passes, or with the other images of a batch."""

import itertools
import random

import numpy as np
import pytest
import torch

from vit.capture.checks.steady import check_independent, check_steady, repeated

# The numbers of each image are far from those of the others, in every draw.
DISTINCT = torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(0)) + torch.arange(4.0)[:, None, None, None]


def test_a_third_image_that_changes_the_others_is_found():
    class Bytes(torch.nn.Module):
        """Divides by 255 if an image of the batch looks like bytes."""

        def forward(self, images):
            return (images / 255 if images.max() > 1.5 else images).flatten(1)[:, :4]

    images = torch.rand(4, 3, 4, 4)
    check_independent(Bytes().eval(), images)
    images[2, 0, 0, 0] = 1.6
    check_steady(Bytes().eval(), images)
    with pytest.raises(ValueError, match=r"the images of a batch change each other .*: give one image at a time"):
        check_independent(Bytes().eval(), images)


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7])
def test_images_are_compared_in_batches_of_one_size_and_none_alone(count):
    sizes = []

    class Squeezed(torch.nn.Module):
        """Rounds by the size of the batch, and loses the axis of a single image."""

        def forward(self, images):
            sizes.append(len(images))
            return (images.flatten(1)[:, :4] * (1 + 0.01 * len(images))).squeeze()

    check_independent(Squeezed().eval(), torch.rand(count, 3, 4, 4))
    # One pass of all, one that tells how far images move the logits, and those in which others are exchanged.
    assert sizes == [count, 2, *[count] * {3: 3, 4: 4, 5: 4, 6: 4, 7: 5}[count]]


@pytest.mark.parametrize(("changed", "by"), [*itertools.permutations(range(5), 2)])
def test_each_image_is_compared_beside_each_other_one(changed, by):
    class OneDiffers(torch.nn.Module):
        """An image depends on another one of its batch."""

        def forward(self, images):
            number = images.flatten(1)[:, 0]
            return images.flatten(1)[:, :4] + ((number == changed) & (number == by).any())[:, None]

    images = torch.rand(5, 3, 4, 4)
    images[:, 0, 0, 0] = torch.arange(5.0)
    with pytest.raises(ValueError, match="between an image beside other images and the same image in a batch of 5"):
        check_independent(OneDiffers().eval(), images)


@pytest.mark.parametrize("masked", [-1e4, -1e9, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("check", [check_steady, check_independent])
def test_a_masked_class_is_no_scale_for_the_others(check, masked):
    class Masked(torch.nn.Module):
        """Centres the logits of two classes over the batch; others are masked."""

        def forward(self, images):
            logits = images.flatten(1)[:, :2]
            return torch.cat([logits - logits.mean(dim=0), torch.full_like(logits, masked)], dim=1)

    with pytest.raises(ValueError, match="the images of a batch change each other"):
        check(Masked().eval(), DISTINCT)


def test_an_offset_is_no_scale_for_what_images_move():
    class Celsius(torch.nn.Module):
        """Coupled over the batch, on a scale far from 0."""

        def forward(self, images):
            found = images.flatten(1)[:, :1]
            return 2000 + (found - found.mean(dim=0))

    with pytest.raises(ValueError, match="the images of a batch change each other"):
        check_steady(Celsius().eval(), DISTINCT)


@pytest.mark.parametrize("draw", [lambda: random.random() < 0.2, lambda: np.random.rand() < 0.2])
def test_a_layer_that_is_dropped_by_chance_now_and_then_is_random(draw):
    class Dropped(torch.nn.Module):
        def forward(self, images):
            return images.flatten(1)[:, :4] * (2 if draw() else 1)

    random.seed(1)
    np.random.seed(1)
    with pytest.raises(ValueError, match="between two passes of the same images: the model is random"):
        repeated(Dropped().eval(), DISTINCT[:2])


def test_a_copy_of_an_image_that_changes_an_earlier_logit_is_found_in_float32_too():
    class Coupled(torch.nn.Module):
        def forward(self, images):
            sums = images.flatten(1).sum(dim=1, keepdim=True)
            return torch.cat([sums, 1 - sums], dim=1) * (1 + 0.3 * images.mean())

    with pytest.raises(ValueError, match="the images of a batch change each other"):
        check_steady(Coupled().eval(), torch.rand(2, 3, 4, 4))


def test_logits_of_another_image_that_are_not_finite_do_not_make_a_model_random():
    class Divides(torch.nn.Module):
        def forward(self, images):
            return images.flatten(1)[:, :4] / images.flatten(1)[:, 4:5]

    images = torch.rand(2, 3, 4, 4)
    images[1] = 0
    found = repeated(Divides().eval(), images)
    assert found[0].isfinite().all()
    assert found[1].isnan().all()
