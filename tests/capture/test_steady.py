"""Logits that change between passes, or with the other images of a batch."""

import pytest
import torch

from vit.capture.steady import check_independent, check_steady


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


def test_a_copy_of_an_image_that_changes_an_earlier_logit_is_found_in_float32_too():
    class Coupled(torch.nn.Module):
        def forward(self, images):
            sums = images.flatten(1).sum(dim=1, keepdim=True)
            return torch.cat([sums, 1 - sums], dim=1) * (1 + 0.3 * images.mean())

    with pytest.raises(ValueError, match="the images of a batch change each other"):
        check_steady(Coupled().eval(), torch.rand(2, 3, 4, 4))
