"""Attention that a model calls image by image."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint

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
        (mapped, "runs its attention within torch.vmap, which hides an axis"),
    ],
    ids=["a loop", "vmap"],
)
def test_attention_image_by_image_is_refused(mix, message, images):
    with pytest.raises(ValueError, match=message):
        explain(invented(Layer(mix)), images, "rollout")


@pytest.mark.parametrize("method", ["rollout", "gradcam", "legrad"])
def test_threads_that_capture_at_once_leave_torch_as_it_was(method):
    before = torch.utils.checkpoint.CheckpointFunction
    models = [invented(Layer(), Layer()) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda model: explain(model, IMAGES, method), models))
    assert torch.utils.checkpoint.CheckpointFunction is before
    assert all(torch.equal(maps, found[0]) for maps in found)
