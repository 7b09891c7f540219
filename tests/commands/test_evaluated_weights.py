"""Weights that are evaluated: checkpoints as they are, and files of weights as checkpoints."""

import pytest
import torch
from torch.testing import assert_close

import vit
from vit.commands.evaluated_weights import load_evaluated, read_evaluated
from vit.objectives import ViTClassifier

SMALL = {"image_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2}


@pytest.fixture
def weights(tmp_path):
    """A file of weights."""
    model = vit.VisionTransformer(**SMALL, num_classes=3)
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    path = tmp_path / "weights.safetensors"
    vit.save(model, path)
    return model, path


def test_a_file_of_weights_becomes_a_checkpoint_that_an_objective_takes(weights):
    model, path = weights
    objective = ViTClassifier(**SMALL, num_classes=3)
    checkpoint = read_evaluated(path, {}, objective.encoder)
    assert checkpoint["encoder"]["arguments"] == model.config
    load_evaluated(objective, checkpoint)
    assert_close(dict(objective.get_submodule(objective.encoder).state_dict()), dict(model.state_dict()))


def test_weights_of_another_architecture_are_refused(weights):
    objective = ViTClassifier(**SMALL, num_classes=5)
    with pytest.raises(ValueError, match=r"num_classes|head"):
        load_evaluated(objective, read_evaluated(weights[1], {}, objective.encoder))
