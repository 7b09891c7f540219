"""Attention that is not seen, on the way to the first layer: refused. Stems that mix no tokens by products: read."""

from copy import deepcopy

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


class Kernel(torch.autograd.Function):
    """Attention with a backward pass of its own, as a kernel of Triton has."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return by_exponentials(None, q, k, v)

    @staticmethod
    def backward(ctx, gradient):
        q, k, v = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
        with torch.enable_grad():
            return torch.autograd.grad(by_exponentials(None, q, k, v), (q, k, v), gradient)


def by_a_kernel(layer, q, k, v):
    return Kernel.apply(q, k, v)


CASES = [(run, mix) for run in (on_patches, on_maps, cut_off) for mix in (by_exponentials, linear)]


@pytest.mark.parametrize(("run", "mix"), [*CASES, (on_patches, by_a_kernel), (on_maps, by_a_kernel)])
def test_an_unseen_layer_on_the_way_to_the_first_is_refused(run, mix):
    model = invented(Layer(mix), Layer(fused), Layer(fused), run=run)
    module = "its forward method" if run is on_maps else "Layer 'layers.0'"
    for read in (capture_attention, lambda model, images: explain(model, images, "rollout")):
        with pytest.raises(ValueError, match=PRODUCT.format(module)):
            read(model, IMAGES)


def test_what_leaves_no_graph_must_not_mix_tokens():
    def run(model, images):
        unseen, *layers = model.layers
        with torch.inference_mode():
            patches = unseen(model.patches(images).flatten(2).mT)
        tokens = torch.cat([model.first.expand(len(patches), -1, -1), patches.clone()], dim=1)
        for layer in layers:
            tokens = layer(tokens)
        return model.read(tokens)

    with pytest.raises(ValueError, match=r"mixes tokens before the first .* as within torch\.inference_mode"):
        capture_attention(invented(Layer(by_exponentials), Layer(fused), Layer(fused), run=run), IMAGES)
    unmixed = Layer(lambda layer, q, k, v: v)
    with torch.no_grad():
        found = capture_attention(invented(unmixed, Layer(fused), Layer(fused), run=run), IMAGES)
    assert len(found) == 2


@pytest.mark.parametrize("log", [lambda x: x.detach().numpy(), lambda x: x.data.tolist(), deepcopy, torch.std])
def test_a_model_may_log_its_patches(log):
    def run(model, images):
        tokens = model.embed(images)
        log(tokens.detach())
        return model.read(model.through(tokens))

    for found, plain in zip(capture_attention(invented(run=run), IMAGES), noted_by(invented(), IMAGES), strict=True):
        assert_close(found, plain, **EXACT)


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
