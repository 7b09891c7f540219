"""Images of several sizes in one batch: the same tokens as each image by itself, in fewer passes."""

from collections import Counter

import pytest
import torch
from torch.testing import assert_close

from tests.architectures import EXACT, randomised
from vit import VisionTransformer
from vit.attention import MECHANISMS
from vit.model import mixed_sizes

SMALL = {"image_size": (6, 10), "patch_size": 2, "embed_dim": 12, "depth": 3, "num_heads": 3, "num_classes": 11}


def small(**kwargs):
    return VisionTransformer(**SMALL | kwargs)


@pytest.mark.parametrize(
    "kwargs",
    [
        *({"attention": name} for name in MECHANISMS),
        *({"pos_embed": name} for name in ("rope", "rope_eva", "none")),
        {"attention": ["window", "softmax", "linear"]},
        {"pool": "mean", "num_registers": 2},
        {"pool": "map"},
        {"pad_images": True},
        {"num_kv_heads": 1, "layer_scale": 0.1, "qk_norm": True},
    ],
    ids=lambda kwargs: " ".join(map(str, kwargs.values())),
)
def test_images_of_several_sizes_in_one_batch_are_encoded_as_each_by_itself(kwargs):
    model = randomised(small(**kwargs)).eval()
    sizes = [(6, 10), (4, 6), (14, 6), (6, 10)]
    if model.patch_embed.pad_images:
        sizes.append((5, 3))
    images = [torch.randn(3, *size, dtype=torch.float64) for size in sizes]
    assert_close(model.forward_mixed(images), torch.cat([model(image[None]) for image in images]), **EXACT)
    expected = [model.forward_features(image[None])[0] for image in images]
    assert_close(model.forward_mixed_features(images), expected, **EXACT)


def test_images_of_several_sizes_pass_projections_and_mlps_once_and_attention_once_a_size():
    model, seen = small().eval(), Counter()
    model.blocks[0].mlp.fc1.register_forward_hook(lambda *_: seen.update(["mlp"]))
    model.blocks[0].attn.qkv.register_forward_hook(lambda *_: seen.update(["qkv"]))
    model.blocks[0].attn.mechanism.register_forward_hook(lambda *_: seen.update(["attention"]))
    model.forward_mixed([torch.randn(3, *size) for size in [(6, 10), (4, 6), (6, 10), (6, 10)]])
    assert seen == {"mlp": 1, "qkv": 1, "attention": 2}


def test_images_of_several_sizes_are_packed_up_to_a_number_of_tokens(monkeypatch):
    model, packs = randomised(small()).eval(), []
    model.blocks[0].mlp.fc1.register_forward_hook(lambda _, inputs, __: packs.append(inputs[0].shape[1]))
    images = [torch.randn(3, *size, dtype=torch.float64) for size in [(6, 10), (4, 6), (14, 6), (6, 10), (2, 2)]]
    expected = model.forward_mixed_features(images)
    assert packs == [2 * 16 + 7 + 22 + 2]
    for most, tokens in ((36, [2 * 16 + 7, 22 + 2]), (1, [2 * 16, 7, 22, 2])):
        packs.clear()
        monkeypatch.setitem(mixed_sizes.PACKED_TOKENS, "cpu", most)
        assert_close(model.forward_mixed_features(images), expected, **EXACT)
        assert packs == tokens
    monkeypatch.setattr(mixed_sizes, "PACKED_TOKENS", {})  # as on a GPU, where all are one pack
    packs.clear()
    assert_close(model.forward_mixed_features(images), expected, **EXACT)
    assert packs == [2 * 16 + 7 + 22 + 2]


@pytest.mark.parametrize("hooked", ["blocks.1", "blocks.1.attn"])
def test_no_hook_is_bypassed_by_images_of_several_sizes(hooked):
    model, seen = small().eval(), []
    model.get_submodule(hooked).register_forward_hook(lambda *_: seen.append(1))
    model.forward_mixed([torch.randn(3, *size) for size in [(6, 10), (4, 6), (6, 10)]])
    assert len(seen) == 2


def test_branches_are_dropped_for_each_image_of_several_sizes():
    torch.manual_seed(0)
    model, image = small(drop_path=0.5).train(), torch.randn(3, 6, 10)
    with torch.no_grad():
        tokens = model.forward_mixed_features([image] * 50)
    assert len({round(each[0, 0].item(), 4) for each in tokens}) > 2


def test_images_of_several_sizes_train_with_dropped_patches():
    model = small(patch_drop=0.5, pos_embed="rope")
    model.forward_mixed([torch.randn(3, 6, 10), torch.randn(3, 2, 4)]).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


def test_images_of_several_sizes_go_through_an_overridden_encoder():
    class Brighter(VisionTransformer):
        def forward_features(self, images, **kwargs):
            return super().forward_features(images, **kwargs) + 1

    model, image = randomised(Brighter(**SMALL)), torch.randn(3, 6, 10).double()
    assert_close(model.forward_mixed([image]), model(image[None]), rtol=0, atol=1e-12)
