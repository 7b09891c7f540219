"""An image alone and in a batch: attention that changes with the other images is refused."""

import pytest
from torch import nn

from tests.architectures import randomised
from tests.capture.interception.test_head_order import IMAGES, Flat, images_first
from vit.capture import capture_attention


class FourAxes(nn.Module):
    """Attention whose heads are the first of four axes, which are as many as there are images."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 12, 2, stride=2)

    def forward(self, images):
        x = self.patches(images).flatten(2).mT.unflatten(-1, (3, 4)).permute(2, 0, 1, 3)
        return nn.functional.scaled_dot_product_attention(x, x, x).mean(dim=2).transpose(0, 1).flatten(1)


class Together(Flat):
    """Layers that subtract the mean over the batch."""

    def forward(self, images):
        return super().forward(images - images.mean(dim=0) if len(images) > 1 else images)


@pytest.mark.parametrize("model", [FourAxes(), Together(images_first)], ids=["as many heads as images", "batch mean"])
def test_attention_of_an_image_that_changes_with_the_others_is_refused(model):
    with pytest.raises(ValueError, match=r"differs by .* between an image alone|attends within windows"):
        capture_attention(randomised(model), IMAGES)
