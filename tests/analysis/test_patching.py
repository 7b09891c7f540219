"""Activation patching: a circuit set by hand is found, and patches equal what is computed in another way."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vit
from tests.analysis.circuits import HEAD, LAYER, TOKEN, TOKENS, bright_and_dark, circuit
from tests.analysis.test_knockout import strongest
from vit.analysis import attribute_patches, patch_activations, prune_heads

SITES = ("head", "attention", "mlp", "residual")


def whole(model, clean, corrupted, target):
    return (model(clean) - model(corrupted))[:, target].detach()


def test_the_head_and_the_way_of_a_circuit_set_by_hand_are_found():
    model, (bright, dark) = circuit(), bright_and_dark()
    everything = whole(model, bright, dark, 0)
    assert (everything > 0.1).all()
    heads = patch_activations(model, bright, dark, "head", target=0)
    assert strongest(heads)[0] == (LAYER, HEAD)
    assert strongest(heads)[1] < 1e-4
    assert_close(heads[:, LAYER, HEAD], everything)
    # The value stands at the patch until the head reads it, and at the class token from then on.
    residual = patch_activations(model, bright, dark, "residual", target=0)
    for layer in range(4):
        token = TOKEN if layer <= LAYER else 0
        assert_close(residual[:, layer, token], everything)
        others = [other for other in range(TOKENS) if other != token]
        assert residual[:, layer, others].abs().max() < 1e-4
    assert strongest(patch_activations(model, bright, dark, "attention", target=0))[0] == (LAYER, 0)
    assert patch_activations(model, bright, dark, "mlp", target=0).abs().max() == 0


def test_patches_before_the_norm_of_the_class_token_are_everything(ours, images):
    clean, corrupted = images[:3], images[3:6]
    residual = patch_activations(ours, clean, corrupted, target=6)
    assert residual.shape == (3, 4, 16)
    assert_close(residual[:, 3, 0], whole(ours, clean, corrupted, 6))
    assert residual[:, 3, 1:].abs().max() == 0


@pytest.mark.parametrize("site", SITES)
def test_a_patch_equals_a_pass_by_hand(ours, images, site):
    clean, corrupted = images[:2], images[2:4]
    falls = patch_activations(ours, clean, corrupted, site, 5, against=2, batch_size=8)
    block = ours.blocks[1]
    module = {"head": block.attn.proj, "attention": block.attn, "mlp": block.mlp, "residual": ours.blocks[0]}[site]
    kept = {}

    def keep(_, inputs, output):
        kept["tokens"] = (inputs[0] if site == "head" else output).clone()

    with torch.no_grad():
        intact = ours(clean)
        with module.register_forward_hook(keep):
            ours(corrupted)
    places = (..., slice(24, 32)) if site == "head" else (slice(None), 3)

    def replace(tokens):
        tokens = tokens.clone()
        tokens[places] = kept["tokens"][places]
        return tokens

    hook = (
        module.register_forward_pre_hook(lambda _, inputs: (replace(inputs[0]),))
        if site == "head"
        else module.register_forward_hook(lambda _, inputs, output: replace(output))
    )
    with torch.no_grad(), hook:
        patched = ours(clean)
    expected = (intact - patched)[:, 5] - (intact - patched)[:, 2]
    assert expected.abs().max() > 0.01
    assert_close(falls[:, 1, 3], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("site", SITES)
def test_the_quick_form_is_exact_for_small_differences_and_has_the_same_shape(ours, images, site):
    ours, images = ours.double(), images.double()
    near = images[:3] + 1e-6 * images[3:6]
    exhaustive = patch_activations(ours, images[:3], near, site, 2, batch_size=2)
    quick = attribute_patches(ours, images[:3], near, site, 2, batch_size=2)
    assert quick.shape == exhaustive.shape
    # Ranks would not do: effects that are zero differ by the rounding of the machine.
    assert_close(quick, exhaustive, atol=2e-4 * exhaustive.abs().max().item(), rtol=2e-4)


def test_chosen_places_alone_are_patched(ours, images):
    whole = patch_activations(ours, images[:2], images[2:4], "head", 1)
    part = patch_activations(ours, images[:2], images[2:4], "head", 1, places=[(2, 4), (0, 1)])
    assert part.isfinite().sum() == 4
    assert_close(part[:, 2, 4], whole[:, 2, 4])
    assert_close(part[:, 0, 1], whole[:, 0, 1])


def test_images_of_the_same_pixels_change_nothing(ours, images):
    assert patch_activations(ours, images[:2], images[:2], "mlp").abs().max() < 1e-5
    assert attribute_patches(ours, images[:2], images[:2], "mlp").abs().max() == 0


def test_what_cannot_be_patched_is_refused(ours, timms, images):
    pairs = images[:2], images[2:4]
    for function in (patch_activations, attribute_patches):
        with pytest.raises(ValueError, match=r"timm.* is not made of the blocks of this package.*cut its attention"):
            function(timms, *pairs)
        with pytest.raises(ValueError, match=r"layers have \[5, 4, 5\] heads: give the model before pruning"):
            function(prune_heads(ours, {1: [0]}), *pairs)
        with pytest.raises(ValueError, match="give one corrupted image for each"):
            function(ours, images[:2], images[:3])
        with pytest.raises(ValueError, match="site"):
            function(ours, *pairs, "norm")
    with pytest.raises(ValueError, match=r"no layer and head \(0, 5\): layers are 0 to 2, heads 0 to 4"):
        patch_activations(ours, *pairs, "head", places=[(0, 5)])
    ours.blocks[0] = nn.Sequential(ours.blocks[0])
    with pytest.raises(ValueError, match="not made of the blocks of this package"):
        patch_activations(ours, *pairs)
    with pytest.raises(ValueError, match="training mode"):
        patch_activations(vit.VisionTransformer((12, 20), 4, embed_dim=12, depth=1, num_heads=3), *pairs)
