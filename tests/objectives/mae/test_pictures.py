"""The picture of reconstructions."""

import pytest
import torch

from vit.model.masked_autoencoder import cut_into_patches, hidden_patches
from vit.objectives import MaskedAutoencoder
from vit.objectives.mae.pictures import HIDDEN, reconstructed


@pytest.fixture
def module():
    torch.manual_seed(0)
    sizes = {"image_size": (6, 8), "patch_size": 2, "in_channels": 3, "embed_dim": 12, "depth": 1, "num_heads": 3}
    statistics = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    return MaskedAutoencoder(**sizes, **statistics, decoder_dim=8, decoder_heads=2).eval()


def test_visible_patches_are_those_of_the_image_and_hidden_ones_are_grey_or_predicted(module):
    images = torch.randint(0, 256, (5, 3, 6, 8), dtype=torch.uint8)
    with torch.no_grad():
        visible, predicted = reconstructed(module, images)
    hidden = hidden_patches(module.visible_in_evaluation(5), 12)
    true, shown, guessed = (cut_into_patches(version, (2, 2)) for version in (images, visible, predicted))
    assert torch.equal(shown[~hidden], true[~hidden])
    assert torch.equal(guessed[~hidden], true[~hidden])
    assert (shown[hidden] == round(255 * HIDDEN)).all()
    assert not torch.equal(guessed[hidden], true[hidden])


def test_a_perfect_prediction_is_the_image(module, monkeypatch):
    images = torch.randint(0, 256, (5, 3, 6, 8), dtype=torch.uint8)

    def perfect(normalised, _):
        patches = cut_into_patches(normalised, (2, 2))
        variance, mean = torch.var_mean(patches, dim=2, keepdim=True)
        return (patches - mean) / (variance + 1e-6).sqrt()

    monkeypatch.setattr(module.network, "forward", perfect)
    assert torch.equal(reconstructed(module, images)[1], images)
