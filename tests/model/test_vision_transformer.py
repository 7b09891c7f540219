"""The Vision Transformer, against timm's and against the documentation of its arguments."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from timm.data import resolve_model_data_config
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import nn
from torch.testing import assert_close

import vit
from tests.architectures import EXACT, randomised
from vit import VisionTransformer
from vit.attention import MECHANISMS
from vit.model.positions import resize_positions, sinusoidal_positions_2d

SMALL = {"image_size": (6, 10), "patch_size": 2, "embed_dim": 12, "depth": 3, "num_heads": 3, "num_classes": 11}

ARCHITECTURES = {
    "class token": {},
    "mean pooling": {"pool": "mean"},
    "mean pooling without class token": {"pool": "mean", "class_token": False},
    "mean pooling, norm before": {"pool": "mean", "fc_norm": False},
    "class token, norm after": {"fc_norm": True},
    "class token, norm before": {"fc_norm": False},
    "registers": {"num_registers": 5},
    "registers, positions of the patches alone": {"num_registers": 5, "no_embed_class": True},
    "class token, positions of the patches alone": {"no_embed_class": True},
    "registers without class token": {"num_registers": 5, "pool": "mean", "class_token": False},
    "LayerScale": {"layer_scale": 0.1},
    "qk_norm": {"qk_norm": True},
    "no qkv bias": {"qkv_bias": False},
    "another MLP": {"mlp_ratio": 2.3},
    "grey images": {"in_channels": 1},
    "non-square image and patch": {"image_size": (35, 6), "patch_size": (5, 2)},
    "patch 4": {"image_size": (8, 12), "patch_size": 4},
    "patch 7": {"image_size": (14, 21), "patch_size": 7},
    "patch 16": {"image_size": 32, "patch_size": 16},
    "no head": {"num_classes": 0},
}
EACH_ARCHITECTURE = pytest.mark.parametrize("kwargs", ARCHITECTURES.values(), ids=ARCHITECTURES)
EACH_POOL = pytest.mark.parametrize("pool", ["cls", "mean", "cls+mean"])

TIMM_NAMES = {
    "image_size": "img_size",
    "in_channels": "in_chans",
    "num_registers": "reg_tokens",
    "layer_scale": "init_values",
    "pool": "global_pool",
}
TIMM_POOLS = {"cls": "token", "mean": "avg"}


OF_PADDED = {"img_size": (6, 10), **{key: value for key, value in SMALL.items() if key != "image_size"}}


def small(**kwargs):
    return VisionTransformer(**SMALL | kwargs)


def small_of_timm(dynamic_img_size=False, **kwargs):
    kwargs = SMALL | {"pool": "cls"} | kwargs
    kwargs["pool"] = TIMM_POOLS[kwargs["pool"]]
    named = {TIMM_NAMES.get(name, name): value for name, value in kwargs.items()}
    return TimmVisionTransformer(**named, dynamic_img_size=dynamic_img_size)


def images_for(model, batch=2):
    embed = model.patch_embed
    return torch.randn(batch, embed.in_channels, *embed.image_size, dtype=model.pos_embed.dtype)


def logits_and_gradients(model, images):
    logits = model(images)
    logits.square().sum().backward()
    return logits, {name: parameter.grad for name, parameter in model.named_parameters()}


# The same architecture in timm, with the same names of weights.


@EACH_ARCHITECTURE
def test_weights_of_timm_give_the_features_logits_and_gradients_of_timm(kwargs):
    theirs, ours = randomised(small_of_timm(**kwargs)), randomised(small(**kwargs), seed=1)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    images = images_for(ours)
    tokens = theirs.forward_features(images)
    assert_close(ours.forward_features(images), tokens, **EXACT)
    assert_close(ours.forward_head(tokens), theirs.forward_head(tokens), **EXACT)
    assert_close(ours.forward_head(tokens, pre_logits=True), theirs.forward_head(tokens, pre_logits=True), **EXACT)
    assert_close(logits_and_gradients(ours, images), logits_and_gradients(theirs, images), **EXACT)
    for attribute in ("embed_dim", "num_features", "num_prefix_tokens", "num_classes"):
        assert getattr(ours, attribute) == getattr(theirs, attribute)


class Brighter(VisionTransformer):
    """Adds one to all features."""

    def forward_features(self, images):
        return super().forward_features(images) + 1


def test_replaced_methods_that_take_no_masks_are_called():
    images = torch.randn(2, 3, 6, 10)
    model = Brighter(**SMALL)
    assert_close(model(images), model.forward_head(model.forward_features(images)))
    model = VisionTransformer(**SMALL)
    model.forward_features = lambda images: torch.ones(2, 16, 12)
    assert_close(model(images), model.forward_head(torch.ones(2, 16, 12)))


class Adapter(nn.Module):
    """A layer with an extra factor that exposes the layer's weight, as low-rank adapters do."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.extra = layer, nn.Parameter(torch.tensor(3.0))

    @property
    def weight(self):
        return self.layer.weight

    @property
    def bias(self):
        return self.layer.bias

    def forward(self, x):
        return self.layer(x) * self.extra


@pytest.mark.parametrize("path", ["patch_embed.proj", "blocks.2.attn.qkv", "blocks.2.attn.proj", "blocks.2.mlp.fc1"])
def test_an_adapter_around_a_layer_is_called_and_learns(path):
    model, images = VisionTransformer(**SMALL), torch.randn(2, 3, 6, 10)
    plain = model(images)
    adapter = Adapter(model.get_submodule(path))
    model.set_submodule(path, adapter)
    adapted = model(images)
    assert (adapted - plain).abs().max() > 1e-4
    assert_close(adapted, model.forward_head(model.forward_features(images)))
    adapted.square().sum().backward()
    assert adapter.extra.grad.abs() > 0


def test_a_layer_with_another_storage_of_its_weights_is_called():
    class Packed(nn.Module):
        """A layer whose weight is a method, as of quantised layers."""

        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def weight(self):
            return self.layer.weight

        def forward(self, x):
            return self.layer(x)

    model, images = VisionTransformer(**SMALL), torch.randn(2, 3, 6, 10)
    expected = model(images)
    for path in [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]:
        model.set_submodule(path, Packed(model.get_submodule(path)))
    assert_close(model(images), expected)


def test_a_hook_on_the_patch_projection_is_called():
    model, seen = VisionTransformer(**SMALL), []
    images = torch.randn(2, 3, 6, 10)
    expected = model(images)
    model.patch_embed.proj.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    assert_close(model(images), expected)
    assert seen == [(2, 12, 3, 5)]


@pytest.mark.parametrize("attention", MECHANISMS)
@pytest.mark.parametrize("assign", [False, True])
def test_a_model_built_on_the_meta_device_and_filled_later_trains_as_any_other(attention, assign):
    kwargs = SMALL | {"attention": attention, "drop_path": 0.3}
    with torch.device("meta"):
        empty = VisionTransformer(**kwargs)
    full = VisionTransformer(**kwargs)
    if not assign:
        empty.to_empty(device="cpu")
    empty.load_state_dict(full.state_dict(), assign=assign)
    images = torch.randn(7, 3, 6, 10)
    outputs = []
    for model in (empty, full):
        torch.manual_seed(0)
        outputs.append(model.train()(images))
    assert_close(*outputs)
    assert [block.drop_path.keep.item() for block in empty.blocks] == pytest.approx([1, 0.85, 0.7])


POSITIONS = pytest.mark.parametrize("pos_embed", ["learned", "sincos", "rope", "rope_eva", "none"])
ON_GRID = {"image_size": (6, 10), "patch_size": 2, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_registers": 1}


@POSITIONS
def test_tokens_that_are_embedded_and_encoded_are_the_features(pos_embed):
    model, images = randomised(VisionTransformer(**ON_GRID, pos_embed=pos_embed)), torch.randn(2, 3, 6, 10).double()
    assert_close(model.encode(model.embed(images)), model.forward_features(images))
    larger = torch.randn(2, 3, 10, 14).double()
    assert_close(model.encode(model.embed(larger), grid=(5, 7)), model.forward_features(larger))


@POSITIONS
def test_kept_patches_are_encoded_as_with_the_others_hidden(pos_embed):
    model, images = randomised(VisionTransformer(**ON_GRID, pos_embed=pos_embed)), torch.randn(2, 3, 6, 10).double()
    keep = torch.tensor([[14, 0, 7], [3, 4, 11]])
    hidden = torch.zeros(2, 1, 1, 17, dtype=torch.bool).index_fill(3, torch.tensor([0, 1]), True)
    hidden = hidden.scatter(3, keep[:, None, None] + 2, True)
    whole = model.forward_features(images, mask=hidden)
    rows = [[0, 1, *(number + 2 for number in numbers)] for numbers in keep.tolist()]
    expected = torch.stack([whole[image, numbers] for image, numbers in enumerate(rows)])
    assert_close(model.forward_features(images, keep=keep), expected)
    few = torch.stack([model.embed(images)[image, numbers] for image, numbers in enumerate(rows)])
    assert_close(model.encode(few, positions=keep), expected)


@POSITIONS
def test_numbers_of_patches_may_be_narrow_integers(pos_embed):
    model = VisionTransformer(**ON_GRID | {"image_size": 32, "depth": 1, "num_registers": 4}, pos_embed=pos_embed)
    images, keep = torch.randn(2, 3, 32, 32), torch.tensor([[3, 251], [255, 0]])  # of 256 patches, after 5 tokens
    expected = model.eval().forward_features(images, keep=keep)
    assert_close(model.forward_features(images, keep=keep.to(torch.uint8)), expected, rtol=0, atol=0)
    few = torch.cat([model.embed(images)[:, :5], model.embed(images)[:, 5:][[[0], [1]], keep]], dim=1)
    assert_close(model.encode(few, positions=keep.to(torch.uint8)), expected)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (torch.tensor([[0, 15]] * 2), r"keep has numbers from 0 to 15: the patches have 0 to 14"),
        (torch.tensor([[-1, 3]] * 2), r"keep has numbers from -1 to 3"),
        (torch.tensor([[0, 1]]), r"keep are torch.int64 of shape \(1, 2\): give a row .* for each of the 2 images"),
        (torch.ones(2, 15, dtype=torch.bool), r"keep are torch.bool of shape \(2, 15\)"),
    ],
)
def test_patches_that_are_not_there_cannot_be_kept(keep, message):
    with pytest.raises(ValueError, match=message):
        VisionTransformer(**ON_GRID).forward_features(torch.randn(2, 3, 6, 10), keep=keep)


@pytest.mark.parametrize("attention", ["window", "neighborhood", "sparse", "linformer", "positional", "convolution"])
def test_attention_over_a_grid_is_not_computed_over_some_of_its_patches(attention):
    model = VisionTransformer(**ON_GRID, attention=["softmax", attention])
    images, keep = torch.randn(2, 3, 6, 10), torch.tensor([[14, 0], [3, 4]])
    answer = r"attention of block 1 \(\w+\) needs all patches of the grid: leave {} out, or take softmax attention"
    with pytest.raises(ValueError, match=answer.format("keep")):
        model.forward_features(images, keep=keep)
    with pytest.raises(ValueError, match=answer.format("positions")):
        model.encode(model.embed(images)[:, :4], positions=keep)


@pytest.mark.parametrize("pos_embed", ["learned", "rope"])
def test_each_token_of_a_patch_needs_a_position(pos_embed):
    model, images = VisionTransformer(**ON_GRID, pos_embed=pos_embed), torch.randn(2, 3, 6, 10)
    with pytest.raises(ValueError, match="4 tokens are not 2 and the 3 that have positions: give the position of each"):
        model.encode(model.embed(images)[:, :4], positions=torch.tensor([[14, 0, 1], [3, 4, 5]]))


def test_tokens_of_another_grid_and_rotary_blocks_without_angles_are_refused():
    model = VisionTransformer(**ON_GRID, pos_embed="rope")
    tokens = model.embed(torch.randn(2, 3, 6, 10))
    with pytest.raises(ValueError, match="16 tokens are not 2 and the patches of a grid of 3 x 5: give the grid"):
        model.encode(tokens[:, :-1])
    with pytest.raises(ValueError, match=r"turn by rotary angles, and none are given: .* encode\(tokens\)"):
        model.blocks[0](tokens)


@pytest.mark.parametrize(
    "kwargs",
    [
        *({"attention": name} for name in MECHANISMS),
        *({"pos_embed": name, "pool": "map"} for name in ("rope", "rope_eva", "none")),
    ],
    ids=str,
)
def test_an_empty_batch_has_no_logits(kwargs):
    model = small(**kwargs).eval()
    images = torch.zeros(0, 3, 6, 10)
    assert model(images).shape == model.train()(images).shape == (0, model.num_classes)


def test_an_empty_batch_has_no_logits_in_a_compiled_model_either():
    model = torch.compile(VisionTransformer(**SMALL).eval(), backend="eager")
    assert model(torch.zeros(0, 3, 6, 10)).shape == (0, SMALL["num_classes"])


def test_a_new_head_is_in_the_mode_of_the_model():
    model = VisionTransformer(**SMALL).eval()
    model.reset_classifier(5)
    assert not model.head.training


def test_timm_reads_the_size_and_the_crop_of_a_model():
    assert resolve_model_data_config(VisionTransformer((32, 64), 8, 1))["input_size"] == [1, 32, 64]
    found = resolve_model_data_config(vit.load("cifar10", image_size=48))
    assert (found["input_size"], found["crop_pct"]) == ([3, 48, 48], 1.0)


@pytest.mark.parametrize("attention", MECHANISMS)
@pytest.mark.parametrize("options", [{"layer_scale": 1e-4, "pool": "mean"}, {"pool": "map", "pre_norm": True}])
def test_init_weights_sets_every_number_of_a_model_from_the_meta_device(attention, options):
    kwargs = SMALL | {"attention": attention, "num_registers": 2, "qk_norm": attention != "simplified"} | options
    with torch.device("meta"):
        model = VisionTransformer(**kwargs).to_empty(device="cpu")
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data.fill_(torch.nan)
    torch.manual_seed(0)
    model.init_weights()
    for name, tensor in model.state_dict().items():
        assert tensor.isfinite().all(), name
    anew = VisionTransformer(**kwargs)
    constant = {name for name, tensor in anew.state_dict().items() if tensor.ndim == 1 and "lambda" not in name}
    assert all(torch.equal(model.state_dict()[name], anew.state_dict()[name]) for name in constant)


@pytest.mark.parametrize("image_size", [(2, 4), (4, 10), (10, 6), (14, 22)])
@pytest.mark.parametrize("no_embed_class", [False, True])
def test_images_of_another_size_give_the_logits_of_timm(image_size, no_embed_class):
    kwargs = {"num_registers": 5, "no_embed_class": no_embed_class}
    theirs = randomised(small_of_timm(dynamic_img_size=True, **kwargs))
    ours = randomised(small(**kwargs))
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, *image_size, dtype=torch.float64)
    assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)  # timm rounds the positions to float32


# Widths of keys and values.


@pytest.mark.parametrize("pos_embed", ["learned", "rope", "rope_eva"])
@pytest.mark.parametrize(("key_dim", "value_dim"), [(8, None), (None, 24), (8, 24)])
def test_keys_and_values_may_be_narrower_or_wider_than_tokens(pos_embed, key_dim, value_dim):
    widths = {"key_dim": key_dim, "value_dim": value_dim}
    model = randomised(VisionTransformer(**ON_GRID, pos_embed=pos_embed, **widths))
    for block in model.blocks:
        assert (block.attn.key_dim, block.attn.value_dim) == (key_dim or 16, value_dim or 16)
        assert block.attn.qkv.weight.shape == (2 * (key_dim or 16) + (value_dim or 16), 16)
        assert block.attn.proj.weight.shape == (16, value_dim or 16)
    images = torch.randn(2, 3, 6, 10, dtype=torch.float64)
    assert_close(model.forward_mixed([*images]), model(images), **EXACT)
    again = VisionTransformer(**model.config).double().eval()
    again.load_state_dict(model.state_dict())
    assert_close(again(images), model(images), rtol=0, atol=0)


def test_keys_and_values_as_wide_as_tokens_are_the_usual_ones():
    usual, stated = VisionTransformer(**ON_GRID), VisionTransformer(**ON_GRID, key_dim=16, value_dim=16)
    stated.load_state_dict(usual.state_dict())
    images = torch.randn(2, 3, 6, 10)
    assert_close(stated(images), usual(images), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"key_dim": 9}, r"key_dim \(9\) must be divisible by num_heads \(2\): take key_dim 8"),
        ({"value_dim": 0}, r"value_dim \(0\) must be a positive whole number"),
        ({"key_dim": 4, "pos_embed": "rope"}, r"the width of a head \(4 / 2\) must be a multiple of 4: take key_dim 8"),
    ],
)
def test_widths_of_keys_and_values_that_do_not_fit_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        VisionTransformer(**ON_GRID, **kwargs)


# Features of blocks, as timm gives them.


@pytest.fixture(scope="module")
def twins():
    theirs, ours = randomised(small_of_timm(num_registers=5)), randomised(small(num_registers=5))
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs, images_for(ours)


OPTIONS = {"norm": True, "stop_early": True, "return_prefix_tokens": True, "intermediates_only": True}
OPTIONS["output_fmt"] = "NLC"


@pytest.mark.parametrize("indices", [None, 1, 2, 3, [0], [1, 1], (2, 0), [-2], [0, -2]], ids=str)
@pytest.mark.parametrize("options", [{}, OPTIONS, *({key: value} for key, value in OPTIONS.items())], ids="+".join)
def test_intermediate_features_are_those_of_timm(twins, indices, options):
    ours, theirs, images = twins
    expected = theirs.forward_intermediates(images, indices, **options)
    assert_close(ours.forward_intermediates(images, indices, **options), expected, **EXACT)


@pytest.mark.parametrize("n", [[], [1], [2], [[0, 2]], [(-2,)]], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"reshape": True}, {"return_prefix_tokens": True}, {"norm": True}], ids="".join
)
def test_intermediate_layers_are_those_of_timm(twins, n, options):
    ours, theirs, images = twins
    expected = theirs.get_intermediate_layers(images, *n, **options)
    assert_close(ours.get_intermediate_layers(images, *n, **options), expected, **EXACT)


def test_intermediate_features_of_an_image_of_another_size_have_its_grid(twins):
    ours, _, _ = twins
    images = torch.randn(2, 3, 4, 14, dtype=torch.float64)
    (grid,) = ours.forward_intermediates(images, 1, intermediates_only=True)
    (tokens,) = ours.forward_intermediates(images, 1, output_fmt="NLC", intermediates_only=True)
    assert grid.shape == (2, 12, 2, 7)
    assert grid.is_contiguous()
    assert_close(grid, tokens.mT.reshape(2, 12, 2, 7), rtol=0, atol=0)


@pytest.mark.parametrize(("stop_early", "calls"), [(False, 3), (True, 2)])
def test_stopping_early_skips_the_blocks_after_the_last_chosen_one(stop_early, calls):
    model, called = small(), []
    for i, block in enumerate(model.blocks):
        block.register_forward_hook(lambda *_, i=i: called.append(i))
    model.forward_intermediates(images_for(model), [1, 0], stop_early=stop_early)
    assert called == list(range(calls))


# Pooling and the head.


@pytest.mark.parametrize("fc_norm", [None, False])
def test_cls_mean_concatenates_the_class_token_and_the_mean_of_the_patches(fc_norm):
    model = randomised(small(pool="cls+mean", num_registers=5, fc_norm=fc_norm))
    images = images_for(model)
    tokens = model.forward_features(images)
    feature = torch.cat([tokens[:, 0], tokens[:, 6:].mean(dim=1)], dim=1)
    assert model.num_features == 24
    assert_close(model.forward_head(tokens, pre_logits=True), feature, **EXACT)
    assert_close(model(images), feature @ model.head.weight.T + model.head.bias, **EXACT)


def test_cls_mean_with_fc_norm_normalises_both_together():
    model = randomised(small(pool="cls+mean", fc_norm=True))
    assert isinstance(model.norm, nn.Identity)
    tokens = model.forward_features(images_for(model))
    feature = torch.cat([tokens[:, 0], tokens[:, 1:].mean(dim=1)], dim=1)
    expected = F.layer_norm(feature, (24,), model.fc_norm.weight, model.fc_norm.bias, eps=1e-6)
    assert_close(model.forward_head(tokens, pre_logits=True), expected, **EXACT)


@EACH_POOL
def test_without_classes_the_model_gives_the_pooled_feature(pool):
    model = small(num_classes=0, pool=pool)
    images = images_for(model)
    feature = model(images)
    assert feature.shape == (2, model.num_features)
    assert_close(feature, model.forward_head(model.forward_features(images), pre_logits=True))


@EACH_POOL
def test_a_new_classifier_has_small_weights_zero_bias_and_the_given_number_of_classes(pool):
    torch.manual_seed(0)
    model = small(pool=pool, embed_dim=120)
    model.reset_classifier(101)
    assert model.num_classes == 101
    assert model(images_for(model)).shape == (2, 101)
    assert model.head.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not model.head.bias.any()
    model.reset_classifier(0)
    assert model.num_classes == 0
    assert model(images_for(model)).shape == (2, model.num_features)
    assert not [name for name in model.state_dict() if name.startswith("head")]


def test_a_new_classifier_has_neither_names_nor_thresholds_of_the_old_one():
    model = small()
    model.pretrained_cfg |= {"class_names": [*"abcdefg"], "thresholds": [0.3] * 7, "mean": [0.5] * 3}
    model.reset_classifier(7)
    assert model.pretrained_cfg["mean"] == [0.5] * 3
    assert (model.pretrained_cfg["class_names"], model.pretrained_cfg["thresholds"]) == (None, None)


def test_a_new_classifier_has_the_dtype_and_device_of_the_model():
    model = small().to("meta", torch.float64)
    model.reset_classifier(7)
    assert {(p.dtype, p.device.type) for p in model.head.parameters()} == {(torch.float64, "meta")}
    assert all(p.requires_grad for p in model.head.parameters())


# Names and choices.


def test_the_defaults_are_for_small_colour_images_of_ten_classes():
    model = VisionTransformer()
    assert model.patch_embed.image_size == (32, 32)
    assert model.patch_embed.grid_size == (8, 8)
    assert model.patch_embed.in_channels == 3
    assert (model.embed_dim, len(model.blocks), model.blocks[0].attn.num_heads) == (192, 9, 12)
    assert model.blocks[0].mlp.fc1.out_features == 768
    assert (model.pool, model.num_prefix_tokens, model.num_classes) == ("cls", 1, 10)
    assert not any(module.p for module in model.modules() if isinstance(module, nn.Dropout))
    assert not any(block.drop_path.probability for block in model.blocks)
    assert not model.grad_checkpointing


def test_the_names_of_the_weights_are_these():
    parts = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
    layers = ["patch_embed.proj", *(f"blocks.0.{part}" for part in parts), "norm", "head"]
    expected = ["cls_token", "pos_embed", *(f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias"))]
    assert list(small(depth=1).state_dict()) == expected


def test_options_add_these_names():
    plain = small(depth=1).state_dict()
    rich = small(depth=1, num_registers=5, qk_norm=True, layer_scale=0.1, fc_norm=True).state_dict()
    assert [name for name in rich if name not in plain] == [
        "reg_token",
        *(f"blocks.0.attn.{norm}.{kind}" for norm in ("q_norm", "k_norm") for kind in ("weight", "bias")),
        *("blocks.0.ls1.gamma", "blocks.0.ls2.gamma", "fc_norm.weight", "fc_norm.bias"),
    ]
    assert [name for name in plain if name not in rich] == ["norm.weight", "norm.bias"]


@pytest.mark.parametrize(
    ("kwargs", "names"),
    [
        ({}, {"cls_token", "pos_embed"}),
        ({"num_registers": 5}, {"cls_token", "pos_embed", "reg_token"}),
        ({"class_token": False, "pool": "mean"}, {"pos_embed"}),
    ],
)
def test_learned_tokens_and_positions_have_no_weight_decay(kwargs, names):
    assert small(**kwargs).no_weight_decay() == names
    assert small_of_timm(**kwargs).no_weight_decay() >= names


def test_the_mechanism_takes_attention_kwargs():
    assert small(attention="window", attention_kwargs={"window": 3}).blocks[0].attn.mechanism.window == 3
    with pytest.raises(ValueError, match="'window' has no argument 'strangeness': it takes window"):
        small(attention="window", attention_kwargs={"strangeness": 1})


def test_each_block_has_the_mechanism_that_a_list_names():
    arguments = {"window": {"window": 2}, "topk": {"k": 3}}
    mixed = small(depth=2, attention=["window", "topk"], attention_kwargs=arguments).double().eval()
    alone = [small(depth=2, attention=name, attention_kwargs=arguments[name]).double().eval() for name in arguments]
    for model in alone:
        model.load_state_dict(mixed.state_dict())
    images = images_for(mixed)
    tokens, grid = mixed.embed(images), mixed.patch_embed.grid_size
    tokens = alone[1].blocks[1](alone[0].blocks[0](tokens, grid), grid)
    assert_close(mixed.forward_features(images), mixed.norm(tokens), **EXACT)
    assert not torch.allclose(mixed(images), alone[0](images))


@pytest.mark.parametrize(
    ("attention", "kwargs", "message"),
    [
        (["softmax"], None, r"attention names 1 mechanisms, and depth is 2: name one for each block"),
        (["window", "softmax"], {"window": 2}, r"attention_kwargs has 'window': 2, but for a list of mechanisms"),
        (["window", "softmax"], {"topk": {"k": 2}}, r"attention_kwargs has 'topk'"),
        (["window", "softmax"], {"softmax": {"window": 2}}, r"'softmax' has no argument 'window'"),
        (["window", "soft"], None, r"unknown attention 'soft'"),
    ],
)
def test_a_list_of_mechanisms_that_does_not_fit_is_refused(attention, kwargs, message):
    with pytest.raises(ValueError, match=message):
        small(depth=2, attention=attention, attention_kwargs=kwargs)


@pytest.mark.parametrize("attention", [["window", "softmax"], ["softmax", "window"]])
def test_one_block_without_masks_or_whole_grid_forbids_them_to_the_model(attention):
    model = small(depth=2, attention=attention)
    with pytest.raises(ValueError, match="takes no mask"):
        model(torch.randn(1, 3, 6, 10), torch.ones(16, 16, dtype=torch.bool))
    with pytest.raises(ValueError, match="'window' needs the whole grid"):
        small(depth=2, attention=attention, patch_drop=0.5)


# Other sizes, heads and depths for good.


@pytest.mark.parametrize("kwargs", [{}, {"pos_embed": "sincos"}, {"pos_embed": "rope"}, {"num_registers": 2}], ids=str)
@pytest.mark.parametrize("size", [(10, 14), (6, 10)])
def test_images_of_the_new_input_size_have_the_logits_that_they_had(kwargs, size):
    model = randomised(small(**kwargs | {"embed_dim": 24})).eval()
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    before = model(images)
    model.set_input_size(size)
    assert_close(model(images), before, **EXACT)
    assert model.config["image_size"] == size
    assert model.pretrained_cfg["input_size"] == [3, *size]
    assert model.pos_embed.requires_grad == ("pos_embed" not in kwargs)
    assert VisionTransformer(**model.config).pos_embed.shape == model.pos_embed.shape


def test_a_new_patch_size_is_that_of_timm():
    ours = randomised(small(image_size=12, patch_size=4)).eval()
    theirs = small_of_timm(image_size=12, patch_size=4).double().eval()
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 24, 24, dtype=torch.float64)
    for model in (ours, theirs):
        model.set_input_size(img_size=(24, 24), patch_size=(6, 6))
    assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-4)  # timm resizes in float32
    assert ours.patch_embed.proj.weight.shape[-2:] == (6, 6)


@pytest.mark.parametrize(
    ("kwargs", "sizes", "message"),
    [
        ({"attention": "linformer"}, {"img_size": (10, 14)}, "attention 'linformer' learns a weight for each patch"),
        ({"pos_embed": "rope_eva", "embed_dim": 24}, {"img_size": (10, 14)}, "relative to the grid of the training"),
        ({}, {"img_size": (7, 10)}, "must be a multiple of patch_size"),
        ({"patch_stride": 2, "patch_size": 4}, {"patch_size": 3}, "less an even number of pixels"),
    ],
)
def test_a_size_that_the_weights_do_not_allow_is_refused_and_nothing_changes(kwargs, sizes, message):
    model = small(**kwargs)
    config, state = dict(model.config), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        model.set_input_size(**sizes)
    assert model.config == config
    assert_close(model.state_dict(), state, rtol=0, atol=0)


def test_frozen_weights_stay_frozen_in_another_size():
    model = small().requires_grad_(False)
    model.set_input_size((10, 14))
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(("before", "after"), [("cls", "mean"), ("mean", "cls"), ("cls", "cls+mean"), ("map", "mean")])
def test_a_new_head_may_read_another_pooling(before, after):
    model = randomised(small(pool=before, class_token=before != "map" or after != "mean")).eval()
    model.reset_classifier(7, pool=after)
    images = torch.randn(2, 3, 6, 10, dtype=torch.float64)
    tokens = model.forward_features(images)
    parts = {"cls": [tokens[:, 0]], "mean": [tokens[:, model.num_prefix_tokens :].mean(dim=1)]}
    feature = model.fc_norm(torch.cat([part for name in after.split("+") for part in parts[name]], dim=1))
    assert_close(model(images), model.head(feature), **EXACT)
    again = VisionTransformer(**model.config).double().eval()
    again.load_state_dict(model.state_dict())
    assert_close(again(images), model(images), **EXACT)


@pytest.mark.parametrize(
    ("kwargs", "pool", "message"),
    [
        ({}, "map", "needs other weights than pool 'cls'"),
        ({"pool": "mean"}, "cls+mean", "needs other weights than pool 'mean'"),
        ({"pool": "mean", "class_token": False}, "cls", "class_token is False"),
        ({}, "max", "unknown pool 'max'"),
    ],
)
def test_a_pooling_that_lacks_its_weights_is_refused(kwargs, pool, message):
    with pytest.raises(ValueError, match=message):
        small(**kwargs).reset_classifier(7, pool=pool)


def test_a_pruned_model_computes_the_chosen_features_and_is_saved(tmp_path):
    model = randomised(small(drop_path=0.3, attention=["window", "softmax", "softmax"])).eval()
    images = torch.randn(2, 3, 6, 10, dtype=torch.float64)
    expected = model.get_intermediate_layers(images, [0, 1])
    assert model.prune_intermediate_layers([0, -2]) == [0, 1]
    assert_close(model.get_intermediate_layers(images, 2), expected, **EXACT)
    assert len(model.blocks) == 2
    vit.save(model, tmp_path / "pruned.safetensors")
    assert_close(vit.load(tmp_path / "pruned.safetensors")(images), model(images), **EXACT)


def test_a_pruned_model_keeps_the_arguments_of_the_mechanisms_that_are_left():
    options = {"window": {"window": 2}, "topk": {"k": 3}}
    model = small(attention=["softmax", "window", "topk"], attention_kwargs=options)
    for block, left in ((1, {"window": {"window": 2}}), (0, None)):
        model.prune_intermediate_layers([block])
        assert model.config["attention_kwargs"] == left
        VisionTransformer(**model.config).load_state_dict(model.state_dict())


@pytest.mark.parametrize("method", ["forward_features", "forward_intermediates", "get_intermediate_layers"])
def test_every_forward_takes_a_mask(method):
    model = randomised(small()).eval()
    images = torch.randn(2, 3, 6, 10, dtype=torch.float64)
    mask = torch.rand(2, 1, 16, 16) < 0.6
    tokens, grid = model.embed(images), model.patch_embed.grid_size
    for block in model.blocks:
        tokens = block(tokens, grid, mask)
    expected = {
        "forward_features": model.norm(tokens),
        "forward_intermediates": tokens[:, 1:],
        "get_intermediate_layers": tokens[:, 1:],
    }
    kwargs = {"forward_intermediates": {"output_fmt": "NLC", "intermediates_only": True}}.get(method, {})
    found = getattr(model, method)(images, mask=mask, **kwargs)
    assert_close(found if method == "forward_features" else found[-1], expected[method], **EXACT)


@pytest.mark.parametrize(
    "kwargs", [{}, {"pool": "mean", "num_registers": 2}, {"pool": "map"}, {"patch_stride": 2}, {"pad_images": True}]
)
def test_a_symbolic_trace_computes_the_logits_at_any_size(kwargs):
    model = randomised(small(patch_size=4, image_size=8, **kwargs)).eval()
    traced = torch.fx.symbolic_trace(model)
    for images in torch.randn(2, 3, 8, 8, dtype=torch.float64), torch.randn(3, 3, 12, 8, dtype=torch.float64):
        assert_close(traced(images), model(images), **EXACT)


# Hidden patches.


@pytest.mark.parametrize("kwargs", [{}, {"num_registers": 2, "no_embed_class": True}, {"pos_embed": "rope"}], ids=str)
def test_hidden_patches_are_the_mask_token_at_their_positions(kwargs):
    model = randomised(small(mask_token=True, **kwargs)).eval()
    images, hidden = torch.randn(3, 3, 6, 10, dtype=torch.float64), torch.rand(3, 15) < 0.5
    seen = []
    model.patch_embed.register_forward_hook(lambda *args: seen.append(args[-1]))
    found = model.forward_features(images, token_mask=hidden)
    patches = torch.where(hidden[..., None], model.mask_token, seen[0])
    model.patch_embed.register_forward_hook(lambda *_: patches)
    assert_close(found, model.forward_features(images), **EXACT)


@pytest.mark.parametrize(
    ("kwargs", "token_mask", "message"),
    [
        ({}, torch.zeros(2, 15, dtype=torch.bool), "set mask_token"),
        ({"mask_token": True}, torch.zeros(2, 16, dtype=torch.bool), r"\(2, 16\).*\(2, 15\)"),
        ({"mask_token": True}, torch.zeros(1, 15, dtype=torch.bool), r"\(1, 15\).*\(2, 15\)"),
        ({"mask_token": True}, torch.zeros(2, 15), "torch.float32"),
    ],
)
def test_a_mask_of_tokens_that_does_not_fit_is_refused(kwargs, token_mask, message):
    with pytest.raises(ValueError, match=message):
        small(**kwargs)(torch.randn(2, 3, 6, 10), token_mask=token_mask)


def test_the_mask_token_is_a_weight_as_the_class_token_is(tmp_path):
    model = small(mask_token=True).eval()
    assert "mask_token" in model.no_weight_decay()
    assert 0.01 < model.mask_token.std() < 0.04
    vit.save(model, tmp_path / "model.safetensors")
    assert_close(vit.load(tmp_path / "model.safetensors").mask_token, model.mask_token)
    assert vit.load(model, mask_token=False).load_report.dropped == ["mask_token"]
    assert vit.load(small(), mask_token=True).load_report.fresh == ["mask_token"]
    with pytest.raises(ValueError, match="has no mask_token"):
        vit.save(model, tmp_path / "model.pth", format="timm")


# Initial weights.


def test_linear_layers_start_uniform_after_glorot_and_biases_at_zero():
    torch.manual_seed(0)
    for name, parameter in VisionTransformer(depth=1, qk_norm=True).blocks.named_parameters():
        if "norm" in name:
            assert (parameter == float(name.endswith("weight"))).all()
        elif name.endswith("bias"):
            assert not parameter.any()
        else:
            bound = (6 / sum(parameter.shape)) ** 0.5
            assert parameter.abs().max() <= bound
            assert parameter.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)


def test_the_patch_embedding_starts_with_the_variance_of_the_pixels():
    torch.manual_seed(0)
    projection = VisionTransformer(depth=1, patch_size=(4, 8)).patch_embed.proj
    assert projection.weight.std().item() == pytest.approx((3 * 4 * 8) ** -0.5, rel=0.02)
    assert not projection.bias.any()


def test_tokens_and_the_head_start_small():
    torch.manual_seed(0)
    model = VisionTransformer(depth=1, num_registers=11)
    assert model.head.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.cls_token.std().item() == pytest.approx(0.02, rel=0.2)
    assert model.reg_token.std().item() == pytest.approx(0.02, rel=0.05)
    assert not model.head.bias.any()


def test_positions_start_as_sincos_codes_of_the_patches_and_zero_for_the_prefix():
    model = small(num_registers=5)
    codes = sinusoidal_positions_2d((3, 5), 12)
    assert_close(model.pos_embed.data, torch.cat([torch.zeros(6, 12), codes])[None], rtol=0, atol=0)
    assert_close(small(num_registers=5, no_embed_class=True).pos_embed.data, codes[None], rtol=0, atol=0)


def test_positions_may_start_as_noise():
    torch.manual_seed(0)
    model = VisionTransformer(depth=1, pos_embed_init="normal")
    assert model.pos_embed.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.pos_embed[0, 0].any()


# Training.


def test_fixed_positions_are_sincos_codes_and_are_not_learned():
    fixed, learned = small(pos_embed="sincos", pos_embed_init="normal"), small()
    assert_close(fixed.pos_embed.data, learned.pos_embed.data, rtol=0, atol=0)
    fixed(torch.randn(2, 3, 6, 10)).square().sum().backward()
    assert fixed.pos_embed.grad is None
    assert fixed.patch_embed.proj.weight.grad.abs().sum() > 0
    assert fixed.state_dict().keys() == learned.state_dict().keys()


@pytest.mark.parametrize("pos_embed", ["learned", "sincos", "none", "rope", "rope_eva"])
def test_the_logits_depend_on_the_order_of_the_patches_unless_there_are_no_positions(pos_embed):
    images = torch.randn(2, 3, 6, 10).double()
    mixed = images.unflatten(3, (5, 2))[:, :, :, [4, 0, 3, 1, 2]].flatten(3)  # the columns of patches
    model = small(pos_embed=pos_embed)
    positions = model.pos_embed.double()
    randomised(model).pos_embed.data = positions
    if pos_embed == "none":
        assert not positions.any()
        assert not model.pos_embed.requires_grad  # there is nothing to train
        assert_close(model(mixed), model(images), **EXACT)
    else:
        assert (model(mixed) - model(images)).abs().amax() > 1e-3


@pytest.mark.parametrize(
    ("kwargs", "rows"), [({"tie_qkv": True}, 12), ({"tie_kv": True}, 24), ({"num_kv_heads": 1}, 20)], ids=str
)
def test_shared_projections_reach_every_block(kwargs, rows):
    model = small(**kwargs)
    assert [block.attn.qkv.weight.shape for block in model.blocks] == 3 * [(rows, 12)]
    assert model(torch.randn(2, 3, 6, 10)).shape == (2, 11)


@pytest.mark.parametrize("kwargs", [*ARCHITECTURES.values(), {"pool": "cls+mean"}])
def test_every_parameter_of_a_new_model_gets_a_finite_gradient(kwargs):
    model = small(**kwargs)
    _, gradients = logits_and_gradients(model, images_for(model))
    for name, gradient in gradients.items():
        assert gradient.isfinite().all(), name
        assert gradient.any(), name


def test_gradient_checkpointing_changes_no_gradient():
    kwargs = {"dropout": 0.3, "drop_path": 0.3, "embed_dim": 24}
    plain, checkpointed = small(**kwargs), small(**kwargs, grad_checkpointing=True)
    checkpointed.load_state_dict(plain.state_dict())
    images = images_for(plain, batch=5)
    torch.manual_seed(0)
    expected = logits_and_gradients(plain, images)
    torch.manual_seed(0)
    assert_close(logits_and_gradients(checkpointed, images), expected, rtol=0, atol=0)


@pytest.mark.parametrize(("training", "enable", "calls"), [(True, True, 2), (True, False, 1), (False, True, 1)])
def test_gradient_checkpointing_runs_each_block_twice_and_only_in_training(training, enable, calls):
    model, called = small().train(training), Counter()
    model.set_grad_checkpointing(enable)
    for i, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda *_, i=i: called.update([i]))
    model(images_for(model)).sum().backward()
    assert called == {0: calls, 1: calls, 2: calls}


def test_drop_path_grows_linearly_from_zero_at_the_first_block():
    model = small(depth=5, drop_path=0.2)
    assert [block.drop_path.probability for block in model.blocks] == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2])


def test_patch_drop_shortens_the_sequence_of_the_blocks_only_while_training():
    model, seen = VisionTransformer(**SMALL, patch_drop=0.6), []
    model.blocks[0].register_forward_pre_hook(lambda block, inputs: seen.append(inputs[0].shape[1]))
    images = torch.randn(2, 3, 6, 10)
    for training in (True, False):
        assert model.train(training)(images).shape == (2, 11)
    assert seen == [1 + 6, 1 + 15]


def test_dropout_acts_on_the_embedding_and_in_every_block_while_training():
    torch.manual_seed(0)
    model = small(dropout=0.5)
    assert [module.p for module in model.modules() if isinstance(module, nn.Dropout)] == 7 * [0.5]
    images = images_for(model, batch=11)
    dropped, kept = model.embed(images), model.eval().embed(images)
    assert (dropped == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)
    assert_close(dropped[dropped != 0], 2 * kept[dropped != 0])


def test_positions_of_other_grids_are_resized_as_asked():
    model = small(pos_embed_interpolation="google", num_registers=5)
    nn.init.zeros_(model.patch_embed.proj.weight)
    expected = resize_positions(model.pos_embed, (3, 5), (7, 11), "google")
    assert_close(model.embed(torch.randn(1, 3, 14, 22))[:, 6:], expected[:, 6:], rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(1, 1, 16, 16), (2, 1, 1, 16), (2, 3, 16, 16)])
def test_a_mask_acts_in_all_blocks_as_in_timm(shape):
    theirs, ours = randomised(small_of_timm()), randomised(small(), seed=1)
    ours.load_state_dict(theirs.state_dict())
    images, mask = images_for(ours), torch.rand(shape) < 0.6
    mask[..., 0] = True
    assert_close(ours(images, mask), theirs(images, attn_mask=mask), **EXACT)
    assert_close(ours.forward_features(images, mask), theirs.forward_features(images, attn_mask=mask), **EXACT)
    assert_close(
        ours.forward_intermediates(images, mask=mask, intermediates_only=True),
        theirs.forward_intermediates(images, attn_mask=mask, intermediates_only=True),
        **EXACT,
    )


@pytest.mark.parametrize("size", [(6, 10), (7, 10), (5, 9), (1, 1)])
def test_images_are_padded_on_request_as_in_timm(size):
    theirs = randomised(TimmVisionTransformer(**OF_PADDED, dynamic_img_size=True, dynamic_img_pad=True))
    ours = small(pad_images=True).double()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pos_embed", ["rope", "rope_eva"])
def test_rotary_positions_turn_patches_and_no_prefix_tokens(pos_embed):
    model = randomised(small(pos_embed=pos_embed, num_registers=2)).eval()
    images = images_for(model)
    tokens, grid, angles = model.embed_images(images)
    assert grid == (3, 5)
    assert angles.shape == (3 + 15, 2)
    assert (angles[:3] == 0).all()
    for block in model.blocks:
        tokens = block(tokens, angles=angles)
    assert_close(model.forward_features(images), model.norm(tokens), **EXACT)
    assert_close(model(images), model.forward_head(model.forward_features(images)), **EXACT)


def test_the_distillation_token_is_the_first_register():
    model = randomised(small(pool="cls+dist", num_registers=2))
    images = images_for(model)
    tokens = model.forward_features(images)
    assert_close(model(images), model.head(torch.cat([tokens[:, 0], tokens[:, 1]], dim=1)), **EXACT)
    with pytest.raises(ValueError, match=r"pool 'cls\+dist' reads the first register, but num_registers is 0"):
        small(pool="cls+dist")


# Autocast, compilation, export.


def test_bfloat16_autocast_gives_nearly_the_same_logits():
    torch.manual_seed(0)
    model = small(embed_dim=24, qk_norm=True)
    images = images_for(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(images)
    exact = model(images)
    assert rounded.dtype == torch.bfloat16
    assert (rounded - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize("pool", ["cls", "cls+mean"])
def test_the_compiled_model_is_one_graph_and_gives_the_same_logits_and_gradients(pool):
    model = small(depth=2, pool=pool, num_registers=5, qk_norm=True, layer_scale=0.1)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")  # the same graph, without a minute of C++
    images = images_for(model)
    expected = logits_and_gradients(model, images)
    model.zero_grad()
    logits = compiled(images)
    logits.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert_close((logits, gradients), expected, rtol=1e-4, atol=1e-5)


def test_the_exported_model_takes_batches_of_any_size():
    model = small(depth=2, num_registers=5, qk_norm=True, layer_scale=0.1).eval()
    program = torch.export.export(model, (images_for(model),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for batch in (1, 2, 7):
        images = images_for(model, batch)
        assert_close(program.module()(images), model(images))


def test_a_grid_of_some_patches_is_refused_whatever_drops_them():
    model = vit.VisionTransformer(**SMALL, patch_drop=0.5).eval()
    model.patch_drop.train()
    with pytest.raises(ValueError, match="drops patches"):
        model.forward_intermediates(torch.randn(1, 3, 6, 10))
