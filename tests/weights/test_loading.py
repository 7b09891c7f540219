"""The model of the package, names and paths; weights of one model in another, as a start."""

import json
import re
from pathlib import Path

import pytest
import timm
import torch
from einops import rearrange
from torch import nn
from torch.testing import assert_close

import vit
from vit.commands.photographs import find_images, read_images
from vit.model.embedding import resize_patches
from vit.model.positions import resize_positions
from vit.weights import PACKAGED, start_from
from vit.weights.checkpoint import read_checkpoint
from vit.weights.loading import __file__ as loading

ROOT = Path(__file__).parents[2]
PHOTOGRAPHS = ROOT / "notebooks" / "cifar10"


@pytest.fixture(scope="module")
def model():
    return vit.load("cifar10")


def test_the_model_of_the_package_reads_a_class_token_and_16_x_16_patches(model):
    assert model.patch_embed.grid_size == (16, 16)
    assert model.pool == "cls"
    assert not model.training
    assert model.pos_embed.dtype == torch.float32


def test_it_classifies_the_photographs_of_the_notebook(model):
    files = find_images([PHOTOGRAPHS])
    names = model.pretrained_cfg["class_names"]
    labels = torch.tensor([names.index(file.stem.split("_")[0]) for file in files])
    assert len(files) == 12
    assert (model(read_images(files, model)[1]).argmax(dim=1) == labels).sum() >= 8


def test_each_packaged_model_is_small_and_has_a_card_with_the_accuracy_of_its_training():
    cells = json.loads((ROOT / "benchmarks/results/accuracy.json").read_text()).values()
    for name in PACKAGED:
        file = Path(loading).with_name(f"{name}.safetensors")
        assert file.stat().st_size < 4e6
        card = file.with_suffix(".md").read_text()
        named = [cell for cell in cells if f"configs/{cell['recipe']}.yaml" in card]
        assert named
        assert all(f"{100 * cell['test_accuracy']:.1f} %" in card for cell in named)
        assert re.search(r"^## Licence", card, re.MULTILINE)


def test_a_path_is_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no file at cifar10"):
        vit.load("./cifar10")
    with pytest.raises(ValueError, match="no file at cifar10"):
        vit.load(Path("cifar10"))


SIZES = {"embed_dim": 12, "depth": 2, "num_heads": 3, "num_registers": 2}


def model_of(image_size=12, patch_size=4, num_classes=5, **kwargs):
    return vit.VisionTransformer(image_size, patch_size, num_classes=num_classes, **SIZES | kwargs)


@pytest.fixture
def saved(tmp_path):
    """Returns the model that is saved under a path, and the path."""
    model = model_of()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    model.pretrained_cfg = {"class_names": list("abcde")}
    vit.save(model, tmp_path / "trained.safetensors")
    return model.eval(), tmp_path / "trained.safetensors"


def test_equal_models_give_equal_logits(saved):
    source, path = saved
    model = model_of(patch_drop=0.5).eval()
    report = start_from(model, path, list("abcde"))
    assert str(report) == f"weights of {path} (vit): {len(source.state_dict())} as they are"
    images = torch.randn(3, 3, 12, 12)
    assert_close(model(images), source(images), rtol=0, atol=0)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_what_the_tensors_leave_open_is_that_of_the_model():
    source = model_of(mlp="gelu_tanh", norm_eps=1e-5).eval()
    model = model_of(mlp="gelu_tanh", norm_eps=1e-5).eval()
    start_from(model, source.state_dict())
    images = torch.randn(3, 3, 12, 12)
    assert_close(model(images), source(images), rtol=0, atol=0)


def test_another_patch_size_resizes_patches_and_positions(saved):
    source, path = saved
    model = model_of(patch_size=2)
    assert start_from(model, path).resized == ["patch_embed.proj.weight", "pos_embed"]
    assert_close(model.patch_embed.proj.weight, resize_patches(source.patch_embed.proj.weight, 2))
    assert_close(model.pos_embed, resize_positions(source.pos_embed, (3, 3), (6, 6)))
    assert_close(model.blocks[1].mlp.fc1.weight, source.blocks[1].mlp.fc1.weight, rtol=0, atol=0)
    assert_close(model.head.weight, source.head.weight, rtol=0, atol=0)


def test_overlapping_patches_keep_the_patch_embedding(saved):
    source, path = saved
    model = model_of(patch_stride=2)
    assert start_from(model, path).resized == ["pos_embed"]
    images = torch.randn(2, 3, 12, 12)
    # Patches centred on the cells: every second one, shifted by a pixel, lies on the patches of the source.
    shifted = nn.functional.pad(images, (1, 0, 1, 0))[..., :12, :12]
    fine = rearrange(model.patch_embed(shifted), "b (h w) d -> b h w d", h=6)
    coarse = rearrange(source.patch_embed(images), "b (h w) d -> b h w d", h=3)
    assert_close(fine[:, 1:5:2, 1:5:2], coarse[:, :2, :2])


def test_another_image_size_resizes_positions_alone(saved):
    source, path = saved
    model = model_of(image_size=(12, 20))
    assert start_from(model, path).resized == ["pos_embed"]
    images = torch.randn(2, 3, 12, 20)
    assert_close(model.eval()(images), source(images))


@pytest.mark.parametrize(
    ("num_classes", "names"), [(7, None), (5, list("abced"))], ids=["another number", "other names"]
)
def test_other_classes_keep_their_own_head(saved, num_classes, names):
    source, path = saved
    model = model_of(num_classes=num_classes)
    own = model.head.weight.clone()
    report = start_from(model, path, names)
    assert report.fresh == ["head.weight", "head.bias"]
    assert str(report).endswith("new: head.weight, head.bias")
    assert_close(model.head.weight, own, rtol=0, atol=0)
    assert_close(model.cls_token, source.cls_token, rtol=0, atol=0)


def test_a_model_without_a_head_takes_the_rest(saved):
    source, path = saved
    model = model_of(num_classes=0).eval()
    assert start_from(model, path).dropped == ["head.weight", "head.bias"]
    images = torch.randn(2, 3, 12, 12)
    assert_close(model(images), source.forward_head(source.forward_features(images), pre_logits=True))


def test_a_head_that_reads_more_is_new(saved):
    model = model_of(pool="cls+mean")
    assert start_from(model, saved[1]).fresh == ["head.weight", "head.bias"]


def test_fixed_positions_stay(saved):
    model = model_of(pos_embed="sincos", patch_size=2)
    own = model.pos_embed.clone()
    assert start_from(model, saved[1]).fresh == ["pos_embed"]
    assert_close(model.pos_embed, own, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_heads": 4}, r"holds a model with num_heads 3, and this one has num_heads 4: make them equal"),
        ({"embed_dim": 24, "depth": 1}, r"with embed_dim 12, depth 2, and this one has embed_dim 24, depth 1"),
        ({"attention": "linear"}, r"attention 'softmax'.*attention 'linear'"),
        ({"mlp": "swiglu"}, r"mlp 'gelu', and this one has mlp 'swiglu'"),
    ],
)
def test_another_architecture_is_refused_and_nothing_is_copied(saved, kwargs, message):
    model = model_of(**kwargs)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        start_from(model, saved[1])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def lose_a_norm(_):
    state = timm.create_model("vit_tiny_patch16_224", embed_dim=12, depth=1, num_heads=3, img_size=32).state_dict()
    return {name: tensor for name, tensor in state.items() if name != "norm.bias"}


def write_checkpoint(saved):
    state = {f"vit.{name}": tensor for name, tensor in saved[0].state_dict().items()}
    torch.save({"state_dict": state, "hyper_parameters": saved[0].config}, saved[1].with_suffix(".ckpt"))
    return saved[1].with_suffix(".ckpt")


SOURCES = {"vit.save": lambda saved: saved[1], "model": lambda saved: saved[0], "run": write_checkpoint}


@pytest.mark.parametrize("source_of", [*SOURCES.values(), lose_a_norm], ids=[*SOURCES, "another library"])
def test_a_loading_builds_the_model_and_its_description_and_no_others(saved, source_of, monkeypatch):
    source, built, build = source_of(saved), [], vit.VisionTransformer.__init__
    monkeypatch.setattr(vit.VisionTransformer, "__init__", lambda self, **kw: (built.append(kw), build(self, **kw))[1])
    model = vit.load(source, num_heads=3, num_classes=7, strict=False)
    assert len(built) == 2
    if source_of is not lose_a_norm:
        start_from(model, source)
        assert len(built) == 3


BEFORE = Path(__file__).parents[1] / "before"


@pytest.mark.parametrize("kind", ["completer", "masked"])
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_the_blocks_of_a_completer_start_a_model_that_embeds_images_its_own_way(kind, pool):
    checkpoint = read_checkpoint(BEFORE / kind / "checkpoints/last.ckpt")
    known = {name: checkpoint["hyper_parameters"][name] for name in ("embed_dim", "depth", "num_heads", "mlp_ratio")}
    model = vit.VisionTransformer(image_size=(6, 10), patch_size=2, num_classes=7, pool=pool, **known)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = start_from(model, BEFORE / kind / "checkpoints/last.ckpt")
    theirs = {name.removeprefix("network.decoder."): tensor for name, tensor in checkpoint["state_dict"].items()}
    taken = {name for name in before if name.startswith(("blocks.", "norm.", "fc_norm."))}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, theirs[name.removeprefix("fc_")] if name in taken else before[name]), name
    assert {*report.matched, *report.renamed} == taken
    assert {*report.fresh} == before.keys() - taken


def test_blocks_of_a_completer_of_another_depth_are_refused():
    path = BEFORE / "completer/checkpoints/last.ckpt"
    known = {name: read_checkpoint(path)["hyper_parameters"][name] for name in ("embed_dim", "num_heads", "mlp_ratio")}
    with pytest.raises(ValueError, match="holds a model with depth 1, and this one has depth 3: make them equal"):
        start_from(vit.VisionTransformer(image_size=8, patch_size=2, depth=3, **known), path)
