"""Mistakes in the arguments and inputs of the model are refused in one line with a remedy."""

import re

import pytest
import torch

from vit import VisionTransformer
from vit.model.embedding import PatchEmbed, to_pair

SMALL = {"image_size": (6, 10), "patch_size": 2, "embed_dim": 12, "depth": 3, "num_heads": 3, "num_classes": 11}


def small(**kwargs):
    return VisionTransformer(**SMALL | kwargs)


def images_for(model):
    return torch.randn(2, model.config["in_channels"], *model.patch_embed.image_size)


@pytest.mark.parametrize("indices", [0, 4, -1, [], [3], [-4], [0, 3]], ids=str)
def test_indices_of_no_block_are_refused_with_the_depth(indices):
    model = small()
    with pytest.raises(ValueError, match=r"must name blocks of a model of depth \(3\)") as refusal:
        model.forward_intermediates(images_for(model), indices)
    assert f"indices ({indices})" in str(refusal.value)


def test_an_unknown_output_format_is_refused():
    model = small()
    with pytest.raises(ValueError, match="unknown output_fmt 'NHWC': choose 'NCHW' or 'NLC'"):
        model.forward_intermediates(images_for(model), output_fmt="NHWC")


def test_features_in_a_grid_are_refused_while_patches_are_dropped():
    model = small(patch_drop=0.5).train()
    with pytest.raises(ValueError, match=r"patch_drop \(0.5\) drops patches while training"):
        model.forward_intermediates(images_for(model))
    tokens, features = model.forward_intermediates(images_for(model), output_fmt="NLC")
    assert features[-1].shape[1] == tokens.shape[1] - model.num_prefix_tokens
    model.eval().forward_intermediates(images_for(model))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"pool": "max"}, r"unknown pool 'max': choose 'cls', 'mean', 'cls\+mean', 'cls\+dist' or 'map'"),
        *(
            ({name: "yes"}, rf"{name} \('yes'\) must be True or False")
            for name in ("qkv_bias", "tie_qkv", "tie_kv", "class_token", "no_embed_class", "qk_norm")
        ),
        *(
            ({name: 1}, rf"{name} \(1\) must be True or False")
            for name in ("grad_checkpointing", "pre_norm", "pad_images", "mask_token")
        ),
        ({"fc_norm": "yes"}, r"fc_norm \('yes'\) must be True, False or None"),
        ({"fc_norm": 1}, r"fc_norm \(1\) must be True, False or None"),
        ({"attention": None}, r"attention \(None\) must be the name of a mechanism, or a list of them"),
        ({"attention_kwargs": 3}, r"attention_kwargs \(3\) must be a dict of arguments by name, or None"),
        ({"key_dim": 12.0}, r"key_dim \(12\.0\) must be a positive whole number"),
        ({"pool": "cls", "class_token": False}, "pool 'cls' reads the class token, but .* is False: use pool 'mean'"),
        (
            {"pool": "cls+mean", "class_token": False},
            r"pool 'cls\+mean' reads the class token, but .*: use pool 'mean'",
        ),
        (
            {"pos_embed_interpolation": "bicubc"},
            "unknown pos_embed_interpolation 'bicubc': choose 'bicubic', 'bilinear', 'transformers', 'torchvision'",
        ),
        (
            {"pos_embed": "rotary"},
            "unknown pos_embed 'rotary': choose 'learned', 'sincos', 'none', 'rope' or 'rope_eva'",
        ),
        ({"tie_kv": True, "tie_qkv": True}, r"tie_qkv \(True\) makes keys and values equal as well"),
        ({"num_kv_heads": 2}, r"num_heads \(3\) must be divisible by num_kv_heads \(2\)"),
        ({"pos_embed_init": "zeros"}, "unknown pos_embed_init 'zeros': choose 'sincos' or 'normal'"),
        ({"embed_dim": 190, "num_heads": 19}, r"embed_dim \(190\) must be a multiple of 4 .*: take 192, or let"),
        ({"attention": "quantum"}, "unknown attention 'quantum'"),
        ({"image_size": 0}, r"image_size \(0\) must be a positive whole number, or two of them"),
        ({"image_size": -32}, r"image_size \(-32\) must be a positive whole number"),
        ({"image_size": "32"}, r"image_size \('32'\) must be a positive whole number"),
        ({"image_size": (32, 32, 3)}, r"image_size \(\(32, 32, 3\)\) must be a positive whole number"),
        ({"patch_size": 0}, r"patch_size \(0\) must be a positive whole number"),
        ({"patch_size": 2.5}, r"patch_size \(2.5\) must be a positive whole number"),
        ({"in_channels": 0}, r"in_channels \(0\) must be a positive whole number: 3 for colour"),
        ({"embed_dim": 0}, r"embed_dim \(0\) must be a positive whole number"),
        ({"depth": 0}, r"depth \(0\) must be a positive whole number"),
        ({"depth": 2.0}, r"depth \(2.0\) must be a positive whole number"),
        ({"num_heads": 0}, r"num_heads \(0\) must be a positive whole number"),
        ({"num_classes": -1}, r"num_classes \(-1\) must be a whole number of at least 0"),
        ({"num_registers": -1}, r"num_registers \(-1\) must be a whole number of at least 0"),
        ({"mlp_ratio": 0}, r"mlp_ratio \(0\) must be a number above 0: 4 is usual"),
        ({"mlp_ratio": 0.01}, r"hidden_dim \(0\) must be a positive whole number: it is embed_dim times mlp_ratio"),
        ({"dropout": 1.0}, r"dropout \(1.0\) must be in \[0, 1\)"),
        ({"drop_path": -0.1}, r"drop_path \(-0.1\) must be in \[0, 1\)"),
        ({"layer_scale": True}, r"layer_scale \(True\) must be a number of at least 0: 1e-4 is usual"),
        ({"layer_scale": float("nan")}, r"layer_scale \(nan\) must be a number"),
    ],
)
def test_unknown_or_conflicting_choices_are_refused_with_a_remedy(kwargs, message):
    with pytest.raises(ValueError, match=message):
        small(**kwargs)


@pytest.mark.parametrize("attention", ["window", "neighborhood", "sparse", "linformer", "positional"])
def test_patch_drop_is_refused_by_attention_that_needs_the_grid(attention):
    with pytest.raises(ValueError, match=rf"attention '{attention}' needs the whole grid of patches"):
        VisionTransformer(**SMALL, attention=attention, patch_drop=0.5)


def test_rotary_positions_need_heads_of_a_multiple_of_four_channels():
    with pytest.raises(ValueError, match=r"the width of a head \(18 / 3\) must be a multiple of 4"):
        small(pos_embed="rope", embed_dim=18)


@pytest.mark.parametrize("pos_embed", ["rope", "rope_eva"])
@pytest.mark.parametrize("attention", ["additive", ["softmax", "general"], "uniform", "positional", "convolution"])
def test_rotary_positions_are_refused_where_they_would_be_no_distances(attention, pos_embed):
    with pytest.raises(ValueError, match="Attention does not attend by the dot products of queries and keys alone"):
        VisionTransformer(8, 4, embed_dim=16, depth=2, num_heads=2, attention=attention, pos_embed=pos_embed)


@pytest.mark.parametrize(
    ("patch_size", "patch_stride"), [(4, 3), (4, 6), ((4, 5), (2, 2))], ids=["odd", "larger", "one side"]
)
def test_patches_that_cannot_be_centred_on_cells_are_refused(patch_size, patch_stride):
    sizes = f"patch_stride {to_pair(patch_stride)} must be patch_size {to_pair(patch_size)} less an even number"
    with pytest.raises(ValueError, match=re.escape(sizes)):
        PatchEmbed(12, patch_size, in_channels=3, embed_dim=11, patch_stride=patch_stride)


def test_images_are_a_whole_number_of_strides():
    with pytest.raises(ValueError, match=r"\(9, 10\) must be a multiple of patch_stride \(2, 2\): resize .* \(8, 10\)"):
        PatchEmbed((9, 10), 4, in_channels=3, embed_dim=11, patch_stride=2)
    assert PatchEmbed((6, 10), 4, in_channels=3, embed_dim=11, patch_stride=2).grid_size == (3, 5)


@pytest.mark.parametrize(
    ("image_size", "remedy"),
    [((7, 35), r"\(6, 35\)"), ((6, 34), r"\(6, 30\)"), ((1, 4), r"\(2, 5\)")],
)
def test_an_image_size_that_is_no_multiple_of_the_patch_is_refused_with_both_sizes_and_a_remedy(image_size, remedy):
    rows, columns = image_size
    message = (
        rf"image_size \({rows}, {columns}\) must be a multiple of patch_size \(2, 5\): "
        rf"resize the images to {remedy}, change the patch, or set pad_images"
    )
    with pytest.raises(ValueError, match=message):
        PatchEmbed(image_size, (2, 5), in_channels=3, embed_dim=11)
    embed = PatchEmbed((6, 35), (2, 5), in_channels=3, embed_dim=11)
    with pytest.raises(ValueError, match=message):
        embed(torch.zeros(2, 3, *image_size))


def test_images_of_whole_numbers_are_refused():
    with pytest.raises(ValueError, match=r"images are torch.uint8, but this model takes images of floating point"):
        PatchEmbed((6, 35), (3, 5), 3, 11)(torch.zeros(2, 3, 6, 35, dtype=torch.uint8))


@pytest.mark.parametrize("shape", [(2, 1, 6, 35), (3, 6, 35), (3, 3, 3, 6, 35)])
def test_images_of_another_shape_are_refused_with_both_shapes_and_a_remedy(shape):
    embed = PatchEmbed((6, 35), (2, 5), in_channels=3, embed_dim=11)
    with pytest.raises(ValueError, match=r"this model takes \(batch, 3, rows, columns\): check in_channels") as refusal:
        embed(torch.zeros(shape))
    assert f"images have shape {shape}" in str(refusal.value)
    assert "add the batch axis with images[None]" in str(refusal.value)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(1, 3, 32, 32).double(), r"images are torch.float64 and the weights torch.float32: convert one"),
        (torch.zeros(1, 3, 0, 32), r"images have shape \(1, 3, 0, 32\): give at least one pixel"),
        (torch.zeros(1, 3, 32, 32, device="meta"), "images are on meta and the weights on cpu: move one with"),
    ],
)
def test_images_of_another_type_or_place_or_without_pixels_are_refused(images, message):
    with pytest.raises(ValueError, match=message):
        VisionTransformer(embed_dim=24, depth=1, num_heads=3)(images)


@pytest.mark.parametrize("images", [[], [torch.zeros(1, 3, 32, 32)]], ids=["none", "batches"])
def test_images_of_several_sizes_are_a_list_of_single_ones(images):
    with pytest.raises(ValueError, match=r"images have the shapes .*give a list of at least one \(channels, rows"):
        VisionTransformer(embed_dim=24, depth=1, num_heads=3).forward_mixed(images)


def test_images_of_several_sizes_are_tensors():
    images = [torch.zeros(3, 32, 32), torch.zeros(3, 32, 32).numpy()]
    with pytest.raises(ValueError, match="1 of 2 images are ndarray: make tensors of"):
        VisionTransformer(embed_dim=24, depth=1, num_heads=3).forward_mixed(images)


@pytest.mark.parametrize("count", [-1, 2.5])
def test_a_head_of_no_number_of_classes_is_refused_and_the_old_one_stays(count):
    model = VisionTransformer(embed_dim=24, depth=1, num_heads=3)
    with pytest.raises(ValueError, match="num_classes"):
        model.reset_classifier(count)
    assert model.num_classes == model.config["num_classes"] == 10
