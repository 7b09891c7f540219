"""Trained tensors in a model of other sizes, tokens, channels, pooling and classes."""

import re

import pytest
import timm
import torch
from timm.models._manipulate import adapt_input_conv
from torch.testing import assert_close

import vit
from tests.architectures import EXACT, randomised
from vit.model.positions import resize_positions
from vit.weights.surgery import adapt_channels

SIZES = {"image_size": 12, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 5}


def trained(**kwargs):
    return randomised(vit.VisionTransformer(**SIZES | kwargs))


def images_of(rows=12, columns=12, channels=3):
    return torch.randn(2, channels, rows, columns, dtype=torch.float64)


@pytest.mark.parametrize("channels", [1, 2, 4, 7])
def test_input_channels_are_adapted_as_in_timm(channels):
    weight = torch.randn(5, 3, 4, 4)
    assert_close(adapt_channels(weight, channels), adapt_input_conv(channels, weight))


def test_grey_images_are_seen_as_colour_images_of_equal_channels():
    source = trained()
    model, image = vit.load(source, in_channels=1), images_of(channels=1)
    assert_close(model(image), source(image.expand(-1, 3, -1, -1)), **EXACT)
    assert model.load_report.resized == ["patch_embed.proj.weight"]


def test_folding_the_positions_of_prefix_tokens_changes_no_logit():
    source = trained(num_registers=2)
    model, images = vit.load(source, no_embed_class=True), images_of()
    assert model.pos_embed.shape[1] == 9
    assert model.load_report.folded == ["cls_token", "reg_token"]
    assert_close(model(images), source(images), **EXACT)
    again = vit.load(model, no_embed_class=False)
    assert (again.pos_embed[:, :3] == 0).all()
    assert_close(again(images), source(images), **EXACT)


def test_registers_are_added_and_dropped():
    source = trained(num_registers=2)
    model = vit.load(source, num_registers=5)
    assert_close(model.reg_token[:, :2], source.reg_token, rtol=0, atol=0)
    assert_close(model.pos_embed[:, :3], source.pos_embed[:, :3], rtol=0, atol=0)
    assert (model.pos_embed[:, 3:6] == 0).all()
    assert_close(model.pos_embed[:, 6:], source.pos_embed[:, 3:], rtol=0, atol=0)
    assert model.load_report.fresh == ["reg_token[:, 2:]"]
    again, images = vit.load(model, num_registers=2), images_of()
    assert again.load_report.dropped == ["reg_token[:, 2:]"]
    assert_close(again(images), source(images), **EXACT)
    none = vit.load(source, num_registers=0)
    assert none.load_report.dropped == ["reg_token"]
    assert_close(none.pos_embed, torch.cat([source.pos_embed[:, :1], source.pos_embed[:, 3:]], dim=1), rtol=0, atol=0)


def test_a_class_token_becomes_mean_pooling_and_back():
    source = trained()
    model, images = vit.load(source, pool="mean", class_token=False), images_of()
    assert model.load_report.dropped == ["cls_token"]
    assert model.load_report.renamed == ["fc_norm.weight", "fc_norm.bias"]
    assert model.load_report.assumed == ["a head trained on pool cls: here its logits are wrong until it is trained"]
    assert "norm.weight" not in model.load_report.matched
    tokens = source.patch_embed(images) + source.pos_embed[:, 1:]
    for block in source.blocks:
        tokens = block(tokens)
    assert_close(model(images), source.head(source.norm(tokens.mean(dim=1))), **EXACT)
    back = vit.load(model, pool="cls", class_token=True)
    assert back.load_report.fresh == ["cls_token"]
    assert_close(back.norm.weight, source.norm.weight, rtol=0, atol=0)
    assert_close(back.pos_embed[:, 1:], source.pos_embed[:, 1:], rtol=0, atol=0)


def distilled():
    """A small distilled DeiT of timm, with drawn weights."""
    sizes = {"embed_dim": 12, "depth": 2, "num_heads": 3, "patch_size": 4, "img_size": 12, "num_classes": 5}
    return randomised(timm.create_model("deit_tiny_distilled_patch16_224", **sizes))


def test_a_distilled_head_for_other_classes_is_new_and_not_folded():
    report = vit.load(distilled(), pool="cls", num_classes=7).load_report
    assert "head.weight" in report.fresh
    assert report.folded == []


def test_the_class_half_of_a_distilled_model_is_that_of_its_own_head():
    source = distilled()
    model, images = vit.load(source, pool="cls"), images_of()
    expected = source.head(source.forward_features(images)[:, 0])
    mean_bias = (source.head.bias + source.head_dist.bias) / 2
    assert_close(model(images), expected - source.head.bias + mean_bias, **EXACT)
    assert "head.weight" in model.load_report.folded
    assert not any("head" in assumed for assumed in model.load_report.assumed)


@pytest.mark.parametrize("size", [(20, 8), (12, 16)])
@pytest.mark.parametrize("interpolation", ["bicubic", "transformers", "google"])
def test_another_image_size_resizes_by_the_convention_of_the_model(size, interpolation):
    source = trained(pos_embed_interpolation=interpolation)
    model = vit.load(source, image_size=size)
    grid = (size[0] // 4, size[1] // 4)
    assert_close(model.pos_embed, resize_positions(source.pos_embed, (3, 3), grid, interpolation), rtol=0, atol=0)
    images = images_of(*size)
    assert_close(model(images), source(images), **EXACT)


@pytest.mark.parametrize("interpolation", ["bilinear", "torchvision"])
def test_another_image_size_resizes_by_the_interpolation_that_is_asked_for(interpolation):
    source = trained()
    model = vit.load(source, image_size=(20, 8), pos_embed_interpolation=interpolation)
    assert_close(model.pos_embed, resize_positions(source.pos_embed, (3, 3), (5, 2), interpolation), rtol=0, atol=0)
    images = images_of(20, 8)
    assert_close(model(images), vit.load(source, pos_embed_interpolation=interpolation)(images), **EXACT)


def test_a_timm_checkpoint_of_224_pixels_fits_models_of_32_and_of_448_x_336_as_timm_resizes_it():
    small = {"embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 5}
    source = randomised(timm.create_model("vit_tiny_patch16_224", **small))
    for size in ((32, 32), (448, 336)):
        model = vit.load(source, image_size=size)
        assert model.load_report.resized == ["pos_embed"]
        source.set_input_size(size)
        images = torch.randn(1, 3, *size, dtype=torch.float64)
        assert_close(model(images), source(images), rtol=1e-5, atol=1e-5)
        source = randomised(timm.create_model("vit_tiny_patch16_224", **small))


def test_another_number_of_classes_has_a_new_head_and_no_names():
    source = trained()
    source.pretrained_cfg = {"class_names": list("abcde"), "mean": [0.1] * 3, "std": [0.2] * 3}
    model = vit.load(source, num_classes=7)
    assert model.load_report.fresh == ["head.weight", "head.bias"]
    assert not {"head.weight", "head.bias"} & {*model.load_report.matched, *model.load_report.renamed}
    assert model.pretrained_cfg["class_names"] is None
    assert model.pretrained_cfg["mean"] == [0.1] * 3
    assert model.pretrained_cfg["input_size"] == [3, 12, 12]
    assert vit.load(source, num_classes=0).load_report.dropped == ["head.weight", "head.bias"]


def test_pooling_by_attention_is_new_where_the_trained_model_has_none():
    model = vit.load(trained(), pool="map")
    assert model.load_report.fresh[0] == "attn_pool.latent"
    assert vit.load(model, pool="cls").load_report.dropped[0] == "attn_pool.latent"


def test_rotary_positions_replace_learned_ones():
    model = vit.load(trained(), pos_embed="rope")
    assert model.load_report.fresh == ["pos_embed"]
    assert (model.pos_embed == 0).all()


@pytest.mark.parametrize("change", [{"depth": 3}, {"embed_dim": 24}, {"mlp": "swiglu"}, {"attention": "linear"}])
def test_what_the_weights_depend_on_cannot_change(change):
    (name,) = change
    with pytest.raises(ValueError, match=rf"the model holds a model with {name} .*: make them equal"):
        vit.load(trained(), **change)


@pytest.mark.parametrize(
    ("attention", "options", "same", "other"),
    [
        ("topk", None, {"k": 8}, {"k": 4}),
        ("window", {"window": 4}, None, {"window": 2}),
        (["softmax", "topk"], None, {"topk": {"k": 8}}, {"topk": {"k": 4}}),
    ],
)
def test_an_option_of_a_mechanism_given_at_its_default_is_the_same_model(attention, options, same, other):
    source = vit.VisionTransformer(
        32, 8, embed_dim=16, depth=2, num_heads=2, attention=attention, attention_kwargs=options
    )
    vit.load(source, attention_kwargs=same)
    with pytest.raises(ValueError, match="make them equal") as caught:
        vit.load(source, attention_kwargs=other)
    there, here = re.findall(r"attention (.*?)(?:, and|: make)", str(caught.value))
    assert there != here


def test_an_unknown_argument_is_refused():
    with pytest.raises(
        ValueError, match="VisionTransformer has no argument 'num_class': it takes image_size, patch_size"
    ):
        vit.load(trained(), num_class=3)


def test_fixed_positions_are_resized_as_the_model_resizes_them():
    source, images = trained(pos_embed="sincos"), images_of(20, 8)
    model = vit.load(source, image_size=(20, 8))
    assert_close(model(images), source(images), **EXACT)
    assert "pos_embed" in model.load_report.resized


def test_rotary_positions_that_are_relative_to_the_grid_of_the_training_keep_it():
    source, images = trained(pos_embed="rope_eva"), images_of()
    torch.nn.init.zeros_(source.pos_embed)  # which rotary models have
    with pytest.raises(ValueError, match=r"relative to the grid of the training, \(3, 3\), which would be lost with"):
        vit.load(source, image_size=(20, 8))
    expected = source.forward_head(source.forward_features(images), pre_logits=True)
    assert_close(vit.load(source, num_classes=0)(images), expected, **EXACT)


def test_half_precision_is_resized_in_single_precision(tmp_path):
    source = trained().bfloat16()
    vit.save(source, tmp_path / "half.safetensors")
    model = vit.load(tmp_path / "half.safetensors", image_size=(20, 8))
    expected = resize_positions(source.pos_embed.float(), (3, 3), (5, 2), source.pos_embed_interpolation)
    assert_close(model.pos_embed, expected, rtol=0, atol=0)
