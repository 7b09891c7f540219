"""Our models in timm's registry."""

import importlib
import sys

import pytest
import timm
import torch
from torch.testing import assert_close

import vit
import vit.timm_models
from tests.architectures import EXACT, randomised

TINY = "vit_attention_tiny_patch16_224"
SMALL = {"img_size": 32, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}


def make(**kwargs):
    return randomised(timm.create_model(TINY, **SMALL | kwargs))


def same_of_timm(ours, **kwargs):
    theirs = timm.create_model("vit_tiny_patch16_224", **SMALL | kwargs).double().eval()
    theirs.load_state_dict(ours.state_dict())
    return theirs


def images_of(model):
    return torch.randn(2, model.in_chans, *model.patch_embed.image_size, dtype=torch.float64)


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"img_size": (48, 32), "in_chans": 1},
        {"global_pool": "avg", "reg_tokens": 2},
        {"global_pool": "", "num_classes": 0},
        {"global_pool": ""},
        {"init_values": 1e-2, "qk_norm": True, "drop_rate": 0.5, "drop_path_rate": 0.5, "proj_drop_rate": 0.5},
        {"class_token": False, "global_pool": "avg"},
        {"class_token": False, "global_pool": ""},
        {"class_token": False, "global_pool": "", "fc_norm": True},
    ],
    ids=str,
)
def test_arguments_mean_what_they_mean_to_timm(kwargs):
    ours = make(**kwargs).eval()
    theirs, images = same_of_timm(ours, **kwargs), images_of(ours)
    assert_close(ours(images), theirs(images), **EXACT)
    assert_close(ours.forward_features(images), theirs.forward_features(images), **EXACT)
    for name in ("num_classes", "num_features", "head_hidden_size", "num_prefix_tokens", "global_pool", "in_chans"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert [info["num_chs"] for info in ours.feature_info] == [info["num_chs"] for info in theirs.feature_info]


def test_each_rate_drops_where_timm_drops():
    ours = make(drop_rate=0.1, pos_drop_rate=0.2, proj_drop_rate=0.3, patch_drop_rate=0.4, drop_path_rate=0.5)
    block = ours.blocks[-1]
    rates = (ours.head_drop.p, ours.pos_drop.p, block.drop.p, block.mlp.drop.p, ours.patch_drop.rate)
    assert rates == (0.1, 0.2, 0.3, 0.3, 0.4)
    assert block.drop_path.probability == 0.5


def test_dropout_of_the_pooled_feature_is_on_in_training():
    model = make(drop_rate=0.9).train()
    feature = model.forward_head(model.forward_features(images_of(model)), pre_logits=True)
    assert (feature == 0).float().mean() > 0.5


@pytest.mark.parametrize("num_classes", [0, 7])
@pytest.mark.parametrize("pool", [None, "token", "avg", ""])
def test_reset_classifier_is_that_of_timm(num_classes, pool):
    ours = make().eval()
    theirs, images = same_of_timm(ours), images_of(ours)
    for model in (ours, theirs):
        model.reset_classifier(num_classes, pool)
    theirs.load_state_dict(ours.state_dict())
    assert_close(ours(images), theirs(images), **EXACT)
    assert ours.get_classifier() is ours.head


def test_a_mask_is_attn_mask():
    ours = make().eval()
    theirs, images = same_of_timm(ours), images_of(ours)
    mask = torch.rand(5, 5) < 0.7
    mask.fill_diagonal_(True)
    for method in ("__call__", "forward_features", "get_intermediate_layers"):
        assert_close(
            getattr(ours, method)(images, attn_mask=mask), getattr(theirs, method)(images, attn_mask=mask), **EXACT
        )


def test_the_data_config_has_the_size_of_the_model_and_follows_it():
    model = make(img_size=(64, 32), in_chans=1)
    assert timm.data.resolve_model_data_config(model)["input_size"] == [1, 64, 32]
    model.set_input_size(img_size=96)
    assert timm.data.resolve_model_data_config(model)["input_size"] == [1, 96, 96]


def test_features_only_gives_maps_of_the_chosen_blocks():
    model = timm.create_model(TINY, features_only=True, out_indices=(0, 2), img_size=32, embed_dim=24, num_heads=3)
    features = model(torch.randn(2, 3, 32, 48))
    assert [tuple(feature.shape) for feature in features] == [(2, 24, 2, 3)] * 2
    assert model.feature_info.channels() == [24, 24]
    assert model.feature_info.reduction() == [16, 16]
    assert len(model.model.blocks) == 3


def test_features_of_a_model_that_pools_by_attention_have_no_weights_of_the_pooling():
    arguments = SMALL | {"global_pool": "map", "class_token": False}
    model = timm.create_model(TINY, features_only=True, out_indices=(1,), **arguments)
    assert not [name for name, _ in model.named_parameters() if "attn_pool" in name or "head" in name]
    assert model(torch.randn(2, 3, 32, 32))[0].shape == (2, 24, 2, 2)


def test_the_packaged_weights_are_pretrained():
    model = timm.create_model("vit_attention_cifar10", pretrained=True).eval()
    images, ours = torch.randn(2, 3, 32, 32), vit.load("cifar10")
    assert_close(model(images), ours(images))
    config = timm.data.resolve_model_data_config(model)
    assert config["input_size"] == [3, 32, 32]
    assert config["crop_pct"] == 1.0
    fewer = timm.create_model("vit_attention_cifar10", pretrained=True, num_classes=3, img_size=48, in_chans=1).eval()
    same = vit.load("cifar10", num_classes=0, image_size=48, in_channels=1)
    assert_close(fewer.forward_head(fewer.forward_features(images[:, :1]), True), same(images[:, :1]))


def test_the_weights_of_a_preset_are_those_of_timm(tmp_path):
    theirs = timm.create_model("vit_tiny_patch16_224", depth=1).eval()
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    overlay = {"file": str(tmp_path / "weights.pth")}
    ours = timm.create_model(TINY, pretrained=True, depth=1, pretrained_cfg_overlay=overlay).eval()
    images = torch.randn(1, 3, 224, 224)
    assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-5)
    assert ours.pretrained_cfg["hf_hub_id"] == "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"


def test_a_state_dict_of_timms_model_is_loaded_as_a_backbone():
    model = make(attention="window", attention_kwargs={"window": 2}).eval()
    images = images_of(model)
    assert_close(vit.load(model.state_dict())(images), model(images), **EXACT)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"global_pool": "max"}, ValueError, "unknown global_pool 'max'"),
        ({"attn_drop_rate": 0.1}, TypeError, "attn_drop_rate"),
        ({"image_size": 32}, TypeError, "image_size"),
        ({"img_size": 30}, ValueError, r"image_size \(30, 30\) must be a multiple of patch_size \(16, 16\)"),
    ],
)
def test_what_the_model_lacks_is_refused(kwargs, error, message):
    with pytest.raises(error, match=message):
        timm.create_model(TINY, **SMALL | kwargs)


def test_a_model_of_timms_class_is_saved_by_way_of_its_state_dict(tmp_path):
    model = make(global_pool="avg").eval()
    with pytest.raises(
        ValueError, match=r"model is a TimmVisionTransformer, .*: take vit.load\(model.state_dict\(\)\)"
    ):
        vit.save(model, tmp_path / "model.safetensors")
    vit.save(vit.load(model.state_dict()), tmp_path / "model.safetensors")
    images = images_of(model)
    assert_close(vit.load(tmp_path / "model.safetensors")(images), model(images), **EXACT)


def test_every_preset_is_registered_and_no_name_of_timm_is_taken():
    registered = [name for name in timm.list_models() if name.startswith("vit_attention_")]
    assert len(registered) == len(vit.PRESETS) + 1
    assert timm.models.model_entrypoint("vit_tiny_patch16_224").__module__.startswith("timm.")


def test_without_timm_one_line_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "vit.timm_models")
    monkeypatch.setitem(sys.modules, "timm.models", None)
    with pytest.raises(ValueError, match=r"pip install 'vit-attention\[timm\]'$"):
        importlib.import_module("vit.timm_models")


def test_a_pooling_that_is_refused_changes_nothing():
    model = make(global_pool="").eval()
    shape = model(images_of(model)).shape
    with pytest.raises(ValueError, match="map"):
        model.reset_classifier(5, "map")
    assert model(images_of(model)).shape == shape
