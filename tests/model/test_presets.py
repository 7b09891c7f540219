"""Published sizes: the shapes of timm's models of the same names."""

import pytest
import timm
import torch

import vit
from vit.model.presets import PRESETS
from vit.weights.saving import to_format


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_shapes_of_the_model_of_timm(name):
    with torch.device("meta"):
        ours = vit.create(name)
        theirs = timm.create_model(name, num_classes=ours.num_classes)
    expected = {key: tuple(tensor.shape) for key, tensor in theirs.state_dict().items()}
    if PRESETS[name].get("pos_embed") != "rope":
        assert {key: tuple(tensor.shape) for key, tensor in ours.state_dict().items()} == expected
    assert ours.blocks[0].attn.num_heads == theirs.blocks[0].attn.num_heads
    assert ours.patch_embed.image_size == tuple(theirs.patch_embed.img_size)
    assert ours.blocks[0].norm1.eps == theirs.blocks[0].norm1.eps


@pytest.mark.parametrize("name", [name for name in PRESETS if "dino" in name])
def test_layer_scale_starts_as_in_timm(name):
    small = {"embed_dim": 192, "depth": 1, "num_heads": 4}
    theirs = timm.create_model(name, **small).blocks[0]
    gamma = theirs.gamma_1 if hasattr(theirs, "gamma_1") else theirs.ls1.gamma
    assert torch.equal(vit.create(name, **small).blocks[0].ls1.gamma, gamma)


@pytest.mark.parametrize("name", [name for name in PRESETS if name.endswith("dinov3")])
def test_a_rotary_preset_is_written_under_the_names_of_timm(name):
    small = {"embed_dim": 64, "depth": 1, "num_heads": 4}
    ours, theirs = vit.create(name, **small), timm.create_model(name, **small)
    written = {key: tuple(tensor.shape) for key, tensor in to_format(ours, "timm")[1].items()}
    expected = {key: tuple(tensor.shape) for key, tensor in theirs.state_dict().items()}
    assert {key for key in expected if not key.startswith(("fc_norm", "head"))} == written.keys()
    assert all(written[key] == expected[key] for key in written)


def test_changes_overrule_the_preset():
    model = vit.create("vit_tiny_patch16_224", num_classes=0, image_size=(32, 48), depth=1)
    assert model(torch.randn(2, 3, 32, 48)).shape == (2, 192)


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match=r"no model 'vit_tiny_patch16_22' \(did you mean vit_tiny_patch16_224\?\)"):
        vit.create("vit_tiny_patch16_22")
