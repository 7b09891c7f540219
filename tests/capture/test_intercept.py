"""Attention in forms that say little of their axes."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tests.architectures import EXACT
from tests.capture.test_invented_models import IMAGES, Layer, invented
from vit.capture import capture_attention
from vit.explain import explain


def test_one_mask_for_attention_of_three_axes_is_heeded():
    def fused(layer, q, k, v):
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, layer.bias[:1, :16, :16], scale=0.5)
        return mixed.unflatten(0, (-1, 3))

    model = invented(Layer(fused))
    q, k, _ = model.layers[0].split(model.layers[0].norm1(model.embed(IMAGES)))
    expected = (q @ k.mT / 2 + model.layers[0].bias[0, :16, :16]).softmax(dim=-1)
    assert_close(capture_attention(model, IMAGES)[0], expected, **EXACT)


def one_by_one(layer, q, k, v):
    return torch.stack([F.scaled_dot_product_attention(*image) for image in zip(q, k, v, strict=True)])


def mapped(layer, q, k, v):
    return torch.vmap(F.scaled_dot_product_attention)(q, k, v)


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
