"""Attention that is not seen, on the way to the first layer: refused. Stems that mix no tokens by products: read."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.capture.test_invented_models import EXACT, HEADS, IMAGES, WIDTH, Layer, fused, invented, noted_by
from vit.capture import capture_attention
from vit.capture.checks.first_layer import check_first_layer
from vit.explain import explain

PRODUCT = r"Invented multiplies two tensors that depend on the image before the first .* seen \({}\)"
WEAK = 1e-3  # so that each token still depends on the pixels of its own patch most


def by_exponentials(layer, q, k, v):
    weights = (q @ k.mT / 2).exp()
    return WEAK * (weights / weights.sum(dim=-1, keepdim=True)) @ v


def linear(layer, q, k, v):
    return WEAK * q.relu() @ (k.relu().mT @ v)


def on_patches(model, images):
    """The first layer mixes the patches before the class token joins them."""
    unseen, *layers = model.layers
    patches = unseen(model.patches(images).flatten(2).mT)
    tokens = torch.cat([model.first.expand(len(patches), -1, -1), patches], dim=1)
    for layer in layers:
        tokens = layer(tokens)
    return model.read(tokens)


def on_maps(model, images):
    """The same on a map, whose axes are never those of tokens before the second layer."""
    unseen, *layers = model.layers
    maps = model.patches(images)
    qkv = torch.einsum("bdyx,ed->beyx", maps, unseen.qkv.weight)
    q, k, v = qkv.unflatten(1, (3, HEADS, -1)).flatten(4).mT.unbind(dim=1)
    mixed = unseen.mix(unseen, q, k, v).transpose(2, 3).flatten(1, 2).unflatten(-1, maps.shape[-2:])
    tokens = (maps + mixed).flatten(2).mT
    for layer in layers:
        tokens = layer(tokens)
    return model.head(tokens.mean(dim=1))


def cut_off(model, images):
    """The gradient ends before the first layer that is seen."""
    unseen, *layers = model.layers
    with torch.no_grad():
        tokens = unseen(model.patches(images).flatten(2).mT).detach()
    tokens = torch.cat([model.first.expand(len(tokens), -1, -1), tokens], dim=1)
    for layer in layers:
        tokens = layer(tokens)
    return model.read(tokens)


@pytest.mark.parametrize("run", [on_patches, on_maps, cut_off])
@pytest.mark.parametrize("mix", [by_exponentials, linear])
def test_an_unseen_layer_on_the_way_to_the_first_is_refused(run, mix):
    model = invented(Layer(mix), Layer(fused), Layer(fused), run=run)
    module = "its forward method" if run is on_maps else "Layer 'layers.0'"
    for read in (capture_attention, lambda model, images: explain(model, images, "rollout")):
        with pytest.raises(ValueError, match=PRODUCT.format(module)):
            read(model, IMAGES)


def gated(model, images):
    """A gate for each channel, from the mean of its map, as in squeeze-and-excitation."""
    maps = model.patches(images)
    maps = maps * model.more(maps.mean(dim=(2, 3))).sigmoid()[..., None, None]
    return model.read(model.through(torch.cat([model.first.expand(len(maps), -1, -1), maps.flatten(2).mT], dim=1)))


def crossed(model, images):
    """A product of two vectors of each patch: it moves nothing to another patch."""
    patches = model.patches(images).flatten(2).mT
    outer = patches[..., :, None] @ model.more(patches)[..., None, :]
    patches = patches + outer @ model.positions.new_ones(WIDTH) / 10
    return model.read(model.through(torch.cat([model.first.expand(len(patches), -1, -1), patches], dim=1)))


@pytest.mark.parametrize("run", [gated, crossed])
def test_a_stem_without_attention_is_read(run):
    model = invented(run=run)
    for found, own in zip(capture_attention(model, IMAGES), noted_by(model, IMAGES), strict=True):
        assert_close(found, own, **EXACT)


def test_images_of_whole_numbers_are_not_looked_at():
    check_first_layer(nn.Identity(), torch.zeros(1, 3, 6, 10, dtype=torch.uint8), call=0)
