"""Attention that a model calls image by image."""

import pytest
import torch
import torch.nn.functional as F

from tests.capture.test_invented_models import IMAGES, Layer, invented
from vit.explain import explain


def one_by_one(layer, q, k, v):
    return torch.stack([F.scaled_dot_product_attention(*image) for image in zip(q, k, v, strict=True)])


def mapped(layer, q, k, v):
    return torch.vmap(F.scaled_dot_product_attention)(q, k, v)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch.vmap
@pytest.mark.parametrize("images", [IMAGES, IMAGES[:1]], ids=["three images", "one image"])
@pytest.mark.parametrize(
    ("mix", "message"),
    [
        (one_by_one, "2 attentions for 2 images and 1 for one of them: it passes images one by one"),
        (mapped, "runs its attention within torch.vmap, which hides the images of a batch"),
    ],
    ids=["a loop", "vmap"],
)
def test_attention_image_by_image_is_refused(mix, message, images):
    with pytest.raises(ValueError, match=message):
        explain(invented(Layer(mix)), images, "rollout")
