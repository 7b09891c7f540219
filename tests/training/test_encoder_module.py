"""A module around a Vision Transformer, and the normalisation of its images."""

import re

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from vit.objectives.classify.objective import ViTClassifier

SMALL = {"image_size": 8, "patch_size": 4, "embed_dim": 24, "depth": 1, "num_heads": 3, "num_classes": 5}


def test_a_module_built_on_the_meta_device_and_filled_later_normalises_as_any_other():
    arguments = SMALL | {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    module, images = ViTClassifier(**arguments), torch.rand(2, 3, 8, 8)
    with torch.device("meta"):
        other = ViTClassifier(**arguments)
    other.to_empty(device="cpu").load_state_dict(module.state_dict())
    assert_close(other.normalise(images), module.normalise(images), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mean": [0.5]}, "mean has 1 numbers for 3 channels: give one for each"),
        ({"std": [0.2] * 4}, "std has 4 numbers for 3 channels: give one for each"),
        ({"mean": [0.5, 0.5, float("nan")]}, "mean has nan: give finite numbers"),
        ({"std": [0.2, 0.2, 0.0]}, "std has 0: give finite numbers, above 0"),
    ],
    ids=str,
)
def test_a_normalisation_of_other_channels_or_by_no_numbers_is_refused(given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ViTClassifier(**SMALL | given)


def test_pixels_may_have_another_range_than_from_0_to_1():
    module = ViTClassifier(**SMALL | {"in_channels": 1, "mean": -500, "std": [400.0]})  # as in computed tomography
    assert (module.mean.item(), module.std.item()) == (-500, 400)


@pytest.mark.parametrize("kind", [torch.tensor, np.array, tuple])
def test_a_normalisation_is_noted_in_plain_numbers(kind):
    expected = [0.5, 0.25, 0.125]
    module = ViTClassifier(mean=kind(expected), std=list(kind(expected)), **SMALL)
    for noted in (module.hparams.mean, module.hparams.std, module.hparams_initial.mean):
        assert noted == expected
        assert {type(number) for number in noted} == {float}
    assert module.mean.flatten().tolist() == module.std.flatten().tolist() == expected


def test_every_weight_that_is_trained_gets_a_gradient_with_a_mask_token_too():
    module = ViTClassifier(mask_token=True, **SMALL)
    module.training_loss((torch.rand(2, 3, 8, 8), torch.tensor([0, 4]))).backward()
    assert [name for name, weight in module.named_parameters() if (weight.grad is None) == weight.requires_grad] == []
    assert not module.network.mask_token.requires_grad
