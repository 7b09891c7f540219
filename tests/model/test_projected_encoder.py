"""The heads of learning without labels."""

import pytest
import torch

import vit
from vit.model.projected_encoder import ProjectedEncoder, Projector, Prototypes


def encoder(**changes):
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 4, "embed_dim": 12, "depth": 1, "num_heads": 3, "num_classes": 0}
    return vit.VisionTransformer(**sizes | changes)


def test_prototypes_are_compared_by_their_cosine():
    prototypes, projected = Prototypes(3, 5), torch.randn(4, 3)
    expected = torch.cosine_similarity(projected[:, None], prototypes.weight, dim=2)
    torch.testing.assert_close(prototypes(projected), expected)
    torch.testing.assert_close(prototypes(7 * projected), expected)


@pytest.mark.parametrize("pool", ["cls", "mean", "cls+mean"])
def test_the_pooled_feature_is_projected(pool):
    network, images = ProjectedEncoder(encoder(pool=pool), out_dim=5), torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(network(images), network.projector(network.encoder(images)))
    assert network(images).shape == (2, 5)


def test_three_layers_are_no_linear_map():
    projector = Projector(3, 12, 2)
    x, y = torch.randn(2, 4, 3)
    assert not torch.allclose(projector(x) + projector(y), projector(x + y) + projector(torch.zeros(4, 3)))


def test_parameters_without_weight_decay_are_those_of_the_encoder():
    network = ProjectedEncoder(encoder(), out_dim=5, prototypes=7)
    assert network.no_weight_decay() == {"encoder.cls_token", "encoder.pos_embed"}
    assert network.no_weight_decay() <= dict(network.named_parameters()).keys()


def test_numbers_of_nothing_are_refused():
    with pytest.raises(ValueError, match=r"prototypes \(0\) must be a positive whole number"):
        ProjectedEncoder(encoder(), out_dim=5, prototypes=0)


def test_one_prototype_is_refused_as_its_probability_is_always_1():
    with pytest.raises(ValueError, match=r"prototypes \(1\) leaves nothing to predict, .* always 1: 1024 is usual"):
        ProjectedEncoder(encoder(), out_dim=5, prototypes=1)
