"""The arguments of a model, as a dict that takes attributes."""

import copy
import io
import json

import pytest
import torch

import vit


@pytest.fixture
def config():
    return vit.VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=3).config


def test_attributes_are_set_as_transformers_sets_them_and_are_no_arguments(config):
    before = dict(config)
    config.use_cache = False
    assert config == before
    assert json.loads(config.to_json_string()) == json.loads(json.dumps(before))


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_saved_config_is_read_without_executing_anything(config, weights_only):
    buffer = io.BytesIO()
    torch.save({"config": config}, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=weights_only)["config"]
    assert again == config
    assert list(again) == list(config)
    again.use_cache = False  # what transformers sets on the config of an unpickled model


def test_a_copy_of_a_model_has_a_config_of_its_own(config):
    again = copy.deepcopy(config)
    again["num_classes"] = 3
    again.use_cache = True
    assert config["num_classes"] == 10
    assert not hasattr(config, "use_cache")
