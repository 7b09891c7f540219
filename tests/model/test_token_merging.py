"""Token merging: what is merged, what stays, and which models are refused."""

import pytest
import timm
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import vit
import vit.timm_models
from tests.architectures import EXACT, randomised
from vit.explain import explain
from vit.model.token_merging import Merged, _merge, match_patches

SIZES = {"image_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}
POOLINGS = {
    "class token": {},
    "mean": {"pool": "mean"},
    "both": {"pool": "cls+mean", "num_registers": 2},
    "map": {"pool": "map", "class_token": False},
    "norms, scales and shared keys": {"qk_norm": True, "layer_scale": 0.1, "num_kv_heads": 1},
}
each_pooling = pytest.mark.parametrize("kwargs", POOLINGS.values(), ids=POOLINGS)


def made(**kwargs):
    return randomised(vit.VisionTransformer(**SIZES | kwargs)).eval()


def images_of_two_patches():
    """Images whose upper half repeats one patch, and whose lower half another."""
    patches = torch.randn(2, 3, 2, 1, 4, 1, 4, dtype=torch.float64)
    return patches.expand(2, 3, 2, 2, 4, 4, 4).reshape(2, 3, 16, 16)


@each_pooling
def test_nothing_merged_is_the_model_to_the_bit(kwargs):
    model, images = made(**kwargs), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    assert torch.equal(vit.TokenMerging(model, r=0)(images), model(images))


@each_pooling
def test_identical_patches_are_merged_without_a_change_of_the_logits(kwargs):
    model, images = made(**kwargs, depth=2), images_of_two_patches()
    model.pos_embed.data.zero_()
    merging = vit.TokenMerging(model, r=4)
    assert_close(merging(images), model(images), rtol=1e-10, atol=1e-10)
    assert merging.groups(images).max() == 16 - 2 * 4 - 1
    assert_close(merging.forward_features(images), model.forward_features(images), rtol=1e-10, atol=1e-10)


@each_pooling
def test_different_patches_change_the_logits_and_leave_the_model_as_it_was(kwargs):
    model, images = made(**kwargs), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    before = model(images)
    assert not torch.allclose(vit.TokenMerging(model, r=3)(images), before, rtol=1e-3)
    assert torch.equal(model(images), before)


def test_each_patch_is_in_one_token_and_each_block_merges_r_of_them():
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    groups = vit.TokenMerging(made(num_registers=2), r=3).groups(images)
    assert groups.shape == (2, 16)
    for of_image in groups:
        sizes = of_image.bincount()
        assert len(sizes) == 16 - 3 * 3
        assert sizes.min() >= 1
        assert sizes.sum() == 16


def test_at_most_half_of_the_patches_are_merged_in_a_block():
    images = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    merging = vit.TokenMerging(made(depth=6), r=1000)
    assert set(merging.groups(images).flatten().tolist()) == {0}
    assert merging(images).isfinite().all()


def test_class_token_and_registers_are_never_merged(monkeypatch):
    lengths = []
    model = made(num_registers=2)
    norm = F.layer_norm
    monkeypatch.setattr(F, "layer_norm", lambda x, *rest: lengths.append(x.shape[1]) or norm(x, *rest))
    vit.TokenMerging(model, r=8).forward_features(torch.randn(1, 3, 16, 16, dtype=torch.float64))
    assert lengths == [19, 11, 11, 7, 7, 5, 5]  # norm1 and norm2 of each block, then the final norm: 3 + 16, 8, 4, 2


def test_the_nearest_keys_are_matched_and_a_patch_may_take_several():
    along = torch.tensor([0.0, 0.1, 3.0, 1.5, 0.3, 2.95])
    keys = torch.stack([along.cos(), along.sin()], dim=-1)[None]
    # Patches 0, 2 and 4 are compared with 1, 3 and 5: 2 is 0.05 from 5, 0 is 0.1 from 1, and 4 is 0.2 from 1.
    expected = {1: [0, 1, 4, 2, 3, 4], 2: [0, 0, 3, 1, 2, 3], 3: [0, 0, 2, 1, 0, 2]}
    lengths = torch.tensor([1.0, 5.0, 2.0, 1.0, 3.0, 1.0])[:, None]
    for r, numbers in expected.items():
        assert match_patches(keys, r).tolist() == match_patches(keys * lengths, r).tolist() == [numbers]


def test_a_token_is_the_mean_of_its_patches_and_counts_as_often_in_attention():
    """By hand: one block without an MLP of effect, all patches but one merged into one."""
    model = made(depth=2, pool="mean", class_token=False)
    images = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        for block in model.blocks:
            block.mlp.fc2.weight.zero_()
            block.mlp.fc2.bias.zero_()
        merging = vit.TokenMerging(model, r=2)
        first = model.blocks[0](model.embed(images))
        keys = model.blocks[0].attn.heads(model.blocks[0].norm1(model.embed(images)))[1].mean(dim=1)
        numbers = match_patches(keys, 2)[0]
        means = torch.stack([first[0, numbers == i].mean(dim=0) for i in range(14)])[None]
        second = model.blocks[1]
        repeated = means[:, numbers]  # every patch by itself, with the mean of its token
        expected = means + second.attn(second.norm1(means), second.norm1(repeated))
        found = merging._encode(images)
        sizes = torch.bincount(merging.groups(images)[0])
        numbers = match_patches(second.attn.heads(second.norm1(means))[1].mean(dim=1), 2)[0]
        weights = torch.bincount(match_patches(keys, 2)[0]).double()
        totals = torch.zeros(12, 24, dtype=torch.float64).index_add(0, numbers, expected[0] * weights[:, None])
        assert_close(found.tokens[0], totals / sizes[:, None], **EXACT)


def test_a_token_counts_its_patches_in_bfloat16_as_well():
    tokens = torch.ones(1, 1024, 8, dtype=torch.bfloat16)
    sizes = torch.ones(1, 1024)
    merged = _merge(Merged(tokens, sizes, torch.arange(1024)[None]), tokens, 500)
    assert merged.sizes.max() == merged.groups[0].bincount().max() == 501
    assert merged.tokens.dtype == torch.bfloat16
    merging = vit.TokenMerging(made().to(torch.bfloat16), r=2)
    assert merging._encode(torch.randn(1, 3, 16, 16, dtype=torch.bfloat16)).sizes.dtype == torch.float32


def test_images_of_another_size_and_overlapping_patches_are_merged():
    model = made(patch_stride=2)
    merging = vit.TokenMerging(model, r=10)
    images = torch.randn(2, 3, 12, 20, dtype=torch.float64)
    assert merging.groups(images).shape == (2, 60)
    assert merging(images).shape == (2, 5)


def test_a_model_of_timms_class_is_merged():
    model = timm.create_model("vit_attention_tiny_patch16_224", img_size=64, embed_dim=24, depth=2, num_heads=3).eval()
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(vit.TokenMerging(model, r=0)(images), model(images))


def test_maps_by_attention_are_refused_and_those_by_occlusion_are_made():
    merging, images = vit.TokenMerging(made(), r=3), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    with pytest.raises(ValueError, match="The maps of such layers do not multiply"):
        explain(merging, images, "rollout")
    assert explain(merging, images, "occlusion", target=1).shape == (2, 4, 4)


@each_pooling
def test_legrad_is_that_of_the_model_where_nothing_is_merged(kwargs):
    model, images = made(**kwargs), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    found = explain(vit.TokenMerging(model, r=0), images, "legrad", target=3)
    assert_close(found, explain(model, images, "legrad", target=3), rtol=1e-10, atol=1e-10)


def test_legrad_of_tokens_that_are_merged_after_the_only_attention_is_refused():
    model, images = made(depth=1, pool="mean"), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    with pytest.raises(ValueError, match="TokenMerging mixes tokens in a way that cannot be intercepted"):
        explain(vit.TokenMerging(model, r=4), images, "legrad", target=3)


def test_images_are_normalised_as_for_the_model():
    model = vit.load("cifar10")
    assert vit.TokenMerging(model, r=8).pretrained_cfg is model.pretrained_cfg


def test_a_merging_model_is_exported():
    merging, images = vit.TokenMerging(made().float(), r=3), torch.randn(2, 3, 16, 16)
    program = torch.export.export(merging, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    images = torch.randn(5, 3, 16, 16)
    assert_close(program.module()(images), merging(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"pos_embed": "rope", "embed_dim": 48}, "pos_embed 'rope' turns each patch by its place"),
        ({"attention": "window"}, "attention of block 0 is WindowAttention: only softmax attention counts"),
        ({"attention": ["softmax", "topk", "softmax"]}, "attention of block 1 is TopKAttention"),
        ({"norm": "post"}, "only pre-norm blocks .* this model has norm 'post' and residual True: take one with"),
        ({"residual": False}, "only pre-norm blocks .* this model has norm 'pre' and residual False: take one with"),
    ],
)
def test_models_whose_tokens_cannot_be_merged_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        vit.TokenMerging(made(**kwargs), r=2)


def test_other_modules_replaced_blocks_training_and_masks_are_refused():
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"a Linear is given: tokens of a vit\.VisionTransformer are merged"):
        vit.TokenMerging(torch.nn.Linear(2, 2), r=2)
    with pytest.raises(ValueError, match=r"r \(-1\) must be a whole number of at least 0"):
        vit.TokenMerging(made(), r=-1)
    model = made()
    with pytest.raises(ValueError, match="mask names tokens, and merging changes them"):
        vit.TokenMerging(model, r=2)(images, torch.ones(17, 17, dtype=torch.bool))
    with pytest.raises(ValueError, match="the model is in training mode"):
        vit.TokenMerging(model.train(), r=2)(images)
    model.blocks[1] = torch.nn.Identity()
    with pytest.raises(ValueError, match="block 1 was replaced or has hooks"):
        vit.TokenMerging(model, r=2)


@pytest.mark.parametrize("hooked", [lambda block: block, lambda block: block.attn], ids=["block", "attention"])
def test_hooks_that_came_after_the_construction_are_refused(hooked):
    model, images = made(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    merging = vit.TokenMerging(model, r=2)
    hook = hooked(model.blocks[1]).register_forward_hook(lambda module, inputs, output: 0 * output)
    with pytest.raises(ValueError, match="block 1 was replaced or has hooks, which merging would bypass"):
        merging(images)
    hook.remove()
    assert merging(images).isfinite().all()


def test_an_overridden_encoder_is_refused():
    class Brighter(vit.VisionTransformer):
        def forward_features(self, images, **kwargs):
            return super().forward_features(images, **kwargs) + 1

    with pytest.raises(ValueError, match="forward_features was replaced, which merging would bypass"):
        vit.TokenMerging(Brighter(**SIZES), r=2)
