"""Explanations on a device without float64, such as Apple's GPUs: a pretended one, which refuses it."""

import pytest
import torch

import vit
from tests.pretended_mps import pretended_mps
from vit.explain import METHODS, explain

SMALL = {"image_size": 8, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 4}


def test_the_pretended_device_refuses_float64_and_mixed_devices():
    with pretended_mps() as mps:
        numbers = torch.arange(3.0).to(mps)
        assert numbers.device.type == "mps"
        assert (2 * numbers).cpu().double().tolist() == [0.0, 2.0, 4.0]
        with pytest.raises(TypeError, match="float64"):
            numbers.double()
        with pytest.raises(RuntimeError, match="same device"):
            numbers + torch.ones(3)


@pytest.mark.parametrize("method", METHODS)
def test_every_map_is_the_one_of_the_cpu(method):
    torch.manual_seed(0)
    model, images = vit.VisionTransformer(**SMALL).eval(), torch.rand(2, 3, 8, 8)
    expected = explain(model, images, method)
    with pretended_mps() as mps:
        found = explain(model.to(mps), images.to(mps), method)
        assert found.device.type == "mps"
        torch.testing.assert_close(found.cpu(), expected)
