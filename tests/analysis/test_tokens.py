import pytest
import timm
import torch
from torch import nn

from tests.architectures import ARCHITECTURES, Unread, made
from vit.analysis import TokenNorms, prune_heads, token_norms
from vit.explain import capture_attention

PATCHES = slice(1, 16)


def test_norms_are_those_of_the_tokens_after_each_layer(ours, images):
    with torch.no_grad():
        features = ours.get_intermediate_layers(images, 3, return_prefix_tokens=True)
        attentions = capture_attention(ours, images)
    found = token_norms(ours, images, batch_size=3)
    for layer, (patches, prefix) in enumerate(features):
        torch.testing.assert_close(found.norms[layer], torch.cat([prefix, patches], dim=1).norm(dim=-1))
    expected = torch.stack([16 * attn.mean(dim=(1, 2)) for attn in attentions])
    torch.testing.assert_close(found.received, expected)
    assert found.patches == PATCHES


@pytest.mark.parametrize("name", ["timm, map", "vit-pytorch, ViT"])
def test_norms_of_other_libraries_are_measured(name):
    found = token_norms(made(name), ARCHITECTURES[name].images())
    assert found.norms.shape == found.received.shape == (3, 2, ARCHITECTURES[name].tokens)
    assert (found.norms > 0).all()


def test_attention_that_the_logits_do_not_read_is_no_layer(ours, images):
    found, expected = (token_norms(model, images) for model in (Unread(ours).eval(), ours))
    torch.testing.assert_close(found.norms, expected.norms)
    torch.testing.assert_close(found.received, expected.received)


def designed():
    """Norms of two layers, two images, 15 patches of 9, 10 and 11 between a class token and a register of 500."""
    norms = 10 + torch.arange(-1.0, 2).repeat(5)
    norms = torch.cat([torch.tensor([500.0]), norms, torch.tensor([500.0])]).repeat(2, 2, 1)
    norms[0, 1, 4] = 16.1  # more than 10 + 6 * 1
    norms[0, 1, 7] = 16.0
    norms[1, 0, 15] = 90
    received = torch.ones(2, 2, 17)
    received[1, 1, 4] = 8
    received[0, 1, 4] = 3
    return TokenNorms(norms, received, PATCHES)


def test_outliers_are_patches_six_deviations_beyond_the_median_of_their_layer():
    outliers = designed().outliers
    assert outliers.nonzero().tolist() == [[0, 1, 3], [1, 0, 14]]
    torch.testing.assert_close(designed().outlier_share, torch.tensor([1 / 30, 1 / 30]))


def test_the_attention_of_outliers_is_that_of_the_next_layer():
    mass = designed().outlier_mass
    torch.testing.assert_close(mass[0], torch.tensor(8 / 17 / 2))
    assert mass[1].isnan()


def test_layers_that_share_one_module_are_refused():
    class Twice(nn.Module):
        patch_size = 8

        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 24, 8, 8)
            self.layer = timm.layers.Attention(24, 3)
            self.head = nn.Linear(24, 5)

        def forward(self, images):
            tokens = self.patches(images).flatten(2).mT
            return self.head(self.layer(self.layer(tokens)).mean(1))

    with pytest.raises(ValueError, match="Twice has no module for each layer that takes its tokens"):
        token_norms(Twice().eval(), torch.randn(2, 3, 24, 24))


def test_a_layer_without_heads_is_refused(ours, images):
    with pytest.raises(ValueError, match="layer 1 has no heads left"):
        token_norms(prune_heads(ours, {1: range(5)}), images)
