"""Models in the formats of other libraries, and what has no place there."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vit

SIZES = {"image_size": 8, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 5}
TOLD = ("num_heads", "mlp", "norm_eps", "pos_embed_interpolation", "image_size", "pool")
PATHS = {"timm": "m.safetensors", "torchvision": "m.pth", "google": "m.npz", "transformers": "m"}


def refusal_of(model, path, format):
    """Save a model; return the words of a refusal, or None."""
    try:
        vit.save(model, path, format=format)
    except ValueError as error:
        return str(error)


def model_of(**kwargs):
    return vit.VisionTransformer(**SIZES | kwargs).eval()


ARCHITECTURES = st.fixed_dictionaries(
    {
        "embed_dim": st.sampled_from([12, 20, 24]),
        "depth": st.integers(1, 3),
        "image_size": st.sampled_from([8, 12, (4, 12)]),
        "in_channels": st.sampled_from([1, 3]),
        "num_classes": st.sampled_from([0, 5]),
        "mlp_ratio": st.sampled_from([1.0, 2.5, 8 / 3, 4.0]),
        "num_registers": st.sampled_from([0, 2]),
        "no_embed_class": st.booleans(),
        "layer_scale": st.sampled_from([None, 0.1]),
        "qk_norm": st.booleans(),
        "qkv_bias": st.booleans(),
        "pool": st.sampled_from(["cls", "mean", "map"]),
        "mlp": st.sampled_from(["gelu", "quick_gelu", "swiglu"]),
        "pos_embed": st.sampled_from(["learned", "rope"]),
        "norm_eps": st.sampled_from([1e-6, 1e-5]),
    }
)


@given(kwargs=ARCHITECTURES, format=st.sampled_from([*PATHS]), seed=st.integers(0, 9))
# The same architectures in each run; 3,000 others were tried once.
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_model_is_read_again_bit_for_bit_or_refused_when_it_is_written(tmp_path_factory, kwargs, format, seed):
    torch.manual_seed(seed)
    model = model_of(num_heads=5, **kwargs) if kwargs["embed_dim"] == 20 else model_of(**kwargs)
    path = tmp_path_factory.mktemp("saved") / PATHS[format]
    refusal = refusal_of(model, path, format)
    if refusal is not None:
        assert any(
            words in refusal for words in ("format 'vit'", "another format", "save as 'timm'", "DINOv2 of trans")
        )
        assert not path.exists()
        return
    again = vit.load(path, **{name: model.config[name] for name in TOLD})
    expected = model.state_dict()
    if model.config["pos_embed"] == "learned":
        assert again.config["pos_embed"] == "learned"
    assert again.state_dict().keys() == expected.keys()
    if model.config["pos_embed"] == "rope":
        del expected["pos_embed"]  # zeros
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in expected.items())
    images = torch.randn(2, model.patch_embed.in_channels, *model.patch_embed.image_size)
    assert torch.equal(again(images), model(images))


@pytest.mark.parametrize(
    ("kwargs", "format", "message"),
    [
        ({"num_registers": 2}, "torchvision", "torchvision has no place for reg_token"),
        ({"layer_scale": 0.1}, "google", r"Google \.npz has no place for blocks\.0\.ls1\.gamma"),
        ({"pool": "mean"}, "torchvision", "torchvision has no pool 'mean', but 'cls'"),
        ({"pool": "cls+mean"}, "timm", "timm has no pool 'cls\\+mean'"),
        ({"attention": "linear"}, "timm", "format 'timm' has no attention 'linear': save the model in format 'vit'"),
        ({"tie_kv": True}, "timm", "format 'timm' has no tie_qkv or tie_kv"),
        ({"num_kv_heads": 1}, "timm", "format 'timm' has no num_kv_heads"),
        ({"patch_stride": 2}, "timm", "format 'timm' has no patch_stride 2"),
        ({"key_dim": 6}, "timm", "format 'timm' has no key_dim"),
        ({"value_dim": 24}, "transformers", "format 'transformers' has no value_dim"),
        *(({"norm": "post"}, library, f"format '{library}' has no norm 'post'") for library in PATHS),
        *(({"norm": "none"}, library, f"format '{library}' has no norm 'none'") for library in PATHS),
        *(({"residual": False}, library, f"format '{library}' has no residual false") for library in PATHS),
        ({"no_embed_class": True}, "transformers", r"transformers \(ViT\) has no_embed_class False, and not True"),
        ({"no_embed_class": True}, "torchvision", "torchvision has no_embed_class False, and not True"),
        ({"no_embed_class": True, "layer_scale": 0.1}, "transformers", r"\(DINOv2\) has no_embed_class False"),
        *(
            ({"layer_scale": 0.1, "mlp": mlp}, "transformers", r"DINOv2.* has pool 'cls\+mean', and not 'cls'")
            for mlp in ("gelu", "swiglu")
        ),
        ({"in_channels": 1}, "torchvision", "torchvision has in_channels 3, and not 1"),
        ({"in_channels": 4}, "torchvision", "torchvision has in_channels 3, and not 4"),
        ({"image_size": (8, 12)}, "torchvision", r"torchvision has image_size 12, and not \(8, 12\)"),
        ({"patch_size": (4, 2)}, "torchvision", r"torchvision has patch_size 4, and not \(4, 2\)"),
        *(
            ({"image_size": (8, 9), "pad_images": True}, library, r"has no padding of images of \(8, 9\) pixels to wh")
            for library in PATHS
        ),
        ({"qkv_bias": False}, "torchvision", "torchvision has qkv_bias True, and not False"),
        ({"qkv_bias": False, "mlp": "gelu_tanh"}, "google", r"Google \.npz has qkv_bias True, and not False"),
        ({"pool": "cls+dist", "num_registers": 2}, "timm", r"\(distilled DeiT\) has num_registers 1, and not 2"),
        ({"pre_norm": True}, "transformers", "has no patch_embed.proj.bias, which is not zero here"),
        ({"mlp": "swiglu"}, "transformers", "format 'transformers' has no gated MLP in such a model"),
        ({"mlp": "swiglu"}, "torchvision", "format 'torchvision' has no gated MLP in such a model"),
        ({"pos_embed": "rope_eva"}, "timm", "save the model in format 'vit'"),
        ({}, "flax", "unknown format 'flax': choose one of vit, timm, transformers, torchvision, google"),
    ],
)
def test_what_a_format_has_no_place_for_is_refused_and_nothing_is_written(kwargs, format, message, tmp_path):
    model = model_of(**kwargs)
    torch.nn.init.ones_(model.patch_embed.proj.bias)
    with pytest.raises(ValueError, match=message):
        vit.save(model, tmp_path / PATHS.get(format, "m"), format=format)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["timm", "torchvision"])
def test_a_width_of_the_mlp_that_is_rounded_and_a_stride_of_a_whole_patch_have_a_place(format, tmp_path):
    model = model_of(embed_dim=20, num_heads=5, mlp_ratio=8 / 3, patch_stride=4)
    assert model.blocks[0].mlp.fc1.weight.shape == (53, 20)
    vit.save(model, tmp_path / "m.pth", format=format)
    again = vit.load(tmp_path / "m.pth", num_heads=5)
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(again(images), model(images))


@pytest.mark.parametrize(
    ("format", "name", "message"),
    [
        ("vit", "m.pth", r"m\.pth does not end in \.safetensors, as files of format 'vit' do"),
        (
            "timm",
            "m.npz",
            r"m\.npz must end in \.safetensors or .* or be a folder, without a suffix, for format 'timm'",
        ),
        ("google", "m.pth", r"m\.pth must end in \.npz, for format 'google'"),
        ("transformers", "m.safetensors", r"m\.safetensors must be a folder, without a suffix"),
    ],
)
def test_a_path_that_does_not_fit_the_format_is_refused(format, name, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        vit.save(model_of(), tmp_path / name, format=format)


def test_what_a_format_has_not_is_named(tmp_path):
    model = vit.VisionTransformer(
        embed_dim=24, depth=1, num_heads=3, pos_embed="rope", layer_scale=1e-5, norm_eps=1e-5, num_classes=0
    )
    with pytest.raises(ValueError, match=r"has no blocks.0.attn.qkv.bias, which this model has: save the model in"):
        vit.save(model, tmp_path / "model.safetensors", format="timm")


def test_a_folder_of_transformers_says_that_an_image_may_have_several_labels(tmp_path):
    model = model_of()
    model.pretrained_cfg |= {"class_names": [*"abcde"], "thresholds": [0.3, 0.4, 0.5, 0.6, 0.7]}
    vit.save(model, tmp_path / "several", format="transformers")
    assert json.loads((tmp_path / "several/config.json").read_text())["problem_type"] == "multi_label_classification"
    read = vit.load(tmp_path / "several")
    assert read.pretrained_cfg["thresholds"] == [0.5] * 5  # the folder has no place for others
    assert vit.load(tmp_path / "several", num_classes=3).pretrained_cfg.get("thresholds") is None
    model.pretrained_cfg["thresholds"] = None
    vit.save(model, tmp_path / "one", format="transformers")
    assert "problem_type" not in json.loads((tmp_path / "one/config.json").read_text())
    assert vit.load(tmp_path / "one").pretrained_cfg.get("thresholds") is None


def test_a_folder_of_timm_has_the_crop_that_was_set_last(tmp_path):
    model = model_of()
    model.pretrained_cfg |= {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "crop_ratio": 0.875}
    vit.save(model, tmp_path / "m", format="timm")
    assert json.loads((tmp_path / "m/config.json").read_text())["pretrained_cfg"]["crop_pct"] == 0.875
