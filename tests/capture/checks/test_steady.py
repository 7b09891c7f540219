"""Logits that change between passes, or with the other images of a batch."""

import pytest
import torch

from vit.capture.checks.steady import check_independent, check_steady


def test_a_third_image_that_changes_the_others_is_found():
    class Bytes(torch.nn.Module):
        """Divides by 255 if an image of the batch looks like bytes."""

        def forward(self, images):
            return (images / 255 if images.max() > 1.5 else images).flatten(1)[:, :4]

    images = torch.rand(4, 3, 4, 4)
    check_independent(Bytes().eval(), images)
    images[2, 0, 0, 0] = 1.6
    check_steady(Bytes().eval(), images)
    with pytest.raises(ValueError, match="the images of a batch change each other: give one image at a time"):
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
    assert sizes == [count] * 3


@pytest.mark.parametrize("changed", range(5))
def test_each_image_is_compared(changed):
    class OneDiffers(torch.nn.Module):
        """An image depends on the last one of its batch."""

        def forward(self, images):
            is_it = images.flatten(1)[:, :1] == changed
            return images.flatten(1)[:, :4] + is_it * images[-1, 0, 0, 0]

    images = torch.rand(5, 3, 4, 4)
    images[:, 0, 0, 0] = torch.arange(5.0)
    with pytest.raises(ValueError, match="between an image beside half of these images and the same image in a batch"):
        check_independent(OneDiffers().eval(), images)


def test_a_copy_of_an_image_that_changes_an_earlier_logit_is_found_in_float32_too():
    class Coupled(torch.nn.Module):
        def forward(self, images):
            sums = images.flatten(1).sum(dim=1, keepdim=True)
            return torch.cat([sums, 1 - sums], dim=1) * (1 + 0.3 * images.mean())

    with pytest.raises(ValueError, match="the images of a batch change each other"):
        check_steady(Coupled().eval(), torch.rand(2, 3, 4, 4))
