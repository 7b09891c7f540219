"""Features of frozen models, and their files."""

import copy

import pytest
import torch
from torch.testing import assert_close

import vit
from vit.features import extract, read_features, save_features


@pytest.fixture
def model():
    model = vit.VisionTransformer(8, 4, embed_dim=12, depth=1, num_heads=3, pool="cls+mean").eval()
    model.pretrained_cfg = {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7]}
    return model


def test_features_are_what_the_head_reads_of_normalised_images(model):
    pixels = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)
    features = extract(model, pixels.split(2))
    mean, std = (torch.tensor(model.pretrained_cfg[name])[:, None, None] for name in ("mean", "std"))
    assert features.shape == (5, 24)
    assert not features.requires_grad
    assert_close(model.head(features), model((pixels / 255 - mean) / std))


def test_a_program_computes_the_features_of_normalised_images_on_request(model):
    pixels = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)
    headless = copy.deepcopy(model)
    headless.reset_classifier(0)
    assert_close(extract(model, pixels.split(2), lambda images: 2 * headless(images)), 2 * extract(model, [pixels]))


def test_no_images_are_refused(model):
    with pytest.raises(ValueError, match="there are no images to compute features of"):
        extract(model, [])


def test_a_model_in_training_mode_is_refused(model):
    with pytest.raises(ValueError, match=r"in training mode, in which dropout is random: call model\.eval\(\) first"):
        extract(model.train(), [])


def test_features_are_read_as_they_were_written(tmp_path):
    features, files = torch.randn(2, 3), ["a/ä.jpg", "b.jpg"]
    save_features(features, files, tmp_path / "f.safetensors")
    names, again = read_features(tmp_path / "f.safetensors")
    assert names == files
    assert torch.equal(again, features)


def test_wrong_names_and_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="2 features have 1 names: give one for each image"):
        save_features(torch.zeros(2, 3), ["a"], tmp_path / "f.safetensors")
    with pytest.raises(ValueError, match=r"f\.pt does not end in \.safetensors"):
        save_features(torch.zeros(1, 3), ["a"], tmp_path / "f.pt")
    with pytest.raises(ValueError, match="holds no features with names"):
        read_features(vit.weights.loading.__file__.replace("loading.py", "cifar10.safetensors"))
