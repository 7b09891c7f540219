"""Files of other libraries: what is read, what is refused, and in which words."""

import argparse
import json
import pickle
import re
import zipfile
from functools import partial

import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from timm.models.vision_transformer import checkpoint_filter_fn
from torch.testing import assert_close
from transformers import ViTConfig, ViTForImageClassification

import vit
from tests.architectures import EXACT, randomised
from vit.weights import timm_source, transformers_source
from vit.weights.foreign import ASSUMED_BLOCKS as BLOCKS
from vit.weights.formats.openai import OPENAI
from vit.weights.formats.transformers_config import arguments_in
from vit.weights.timm_source import GELU_TANH

DIM, DEPTH, HEADS = 24, 2, 3
SMALL = {"embed_dim": DIM, "depth": DEPTH, "num_heads": HEADS, "patch_size": 4, "img_size": 16}
OURS = {"image_size": 16, "patch_size": 4, "embed_dim": DIM, "depth": DEPTH, "num_heads": HEADS, "num_classes": 5}
IMAGES = torch.randn(2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def of_timm(name="vit_tiny_patch16_224", **kwargs):
    return randomised(timm.create_model(name, **SMALL | {"num_classes": 5} | kwargs))


def draw(shapes):
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) / 2 for name, shape in shapes.items()}


def openai_state():
    """Random tensors under the names of OpenAI's CLIP, with a piece of the text tower."""
    shapes = {"conv1.weight": (DIM, 3, 4, 4), "class_embedding": (DIM,), "positional_embedding": (17, DIM)}
    shapes |= {f"ln_{place}.{kind}": (DIM,) for place in ("pre", "post") for kind in ("weight", "bias")}
    for i in range(DEPTH):
        block = f"transformer.resblocks.{i}"
        shapes |= {f"{block}.attn.in_proj_weight": (3 * DIM, DIM), f"{block}.attn.in_proj_bias": (3 * DIM,)}
        shapes |= {f"{block}.attn.out_proj.weight": (DIM, DIM), f"{block}.attn.out_proj.bias": (DIM,)}
        shapes |= {f"{block}.ln_{n}.{kind}": (DIM,) for n in (1, 2) for kind in ("weight", "bias")}
        shapes |= {f"{block}.mlp.c_fc.weight": (4 * DIM, DIM), f"{block}.mlp.c_fc.bias": (4 * DIM,)}
        shapes |= {f"{block}.mlp.c_proj.weight": (DIM, 4 * DIM), f"{block}.mlp.c_proj.bias": (DIM,)}
    state = {f"visual.{name}": tensor for name, tensor in draw(shapes | {"proj": (DIM, 5)}).items()}
    text = {"logit_scale": (), "token_embedding.weight": (7, 3), "transformer.resblocks.0.ln_1.weight": (3,)}
    return state | draw(text | {"positional_embedding": (7, 3), "text_projection": (3, 5)})


def test_openai_s_clip_gives_the_logits_of_timm():
    theirs = of_timm("vit_base_patch16_clip_quickgelu_224")
    theirs.load_state_dict(checkpoint_filter_fn(openai_state(), theirs))
    ours = vit.load(openai_state(), num_heads=HEADS)
    assert ours.load_report.format == "OpenAI CLIP"
    assert_close(ours(IMAGES), theirs(IMAGES), **EXACT)


def dinov2_state(registers, gated):
    """Random tensors under the names of DINOv2's authors."""
    shapes = {
        name: tuple(tensor.shape) for name, tensor in of_timm(init_values=1e-5, num_classes=0).state_dict().items()
    }
    shapes["mask_token"] = (1, DIM)
    if registers:
        shapes["register_tokens"] = (1, registers, DIM)
    if gated:
        shapes = {name: shape for name, shape in shapes.items() if ".mlp." not in name}
        for i in range(DEPTH):
            shapes |= {f"blocks.{i}.mlp.w12.weight": (64, DIM), f"blocks.{i}.mlp.w12.bias": (64,)}
            shapes |= {f"blocks.{i}.mlp.w3.weight": (DIM, 32), f"blocks.{i}.mlp.w3.bias": (DIM,)}
    return draw(shapes)


@pytest.mark.parametrize("registers", [0, 4])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
def test_files_of_dinov2_give_the_tokens_of_timm(registers, gated, chunked):
    state = dinov2_state(registers, gated)
    mlp = {"mlp_layer": timm.layers.SwiGLUPacked, "mlp_ratio": 64 / DIM, "act_layer": torch.nn.SiLU} if gated else {}
    places = {"reg_tokens": registers, "no_embed_class": True} if registers else {}
    theirs = of_timm("vit_small_patch14_dinov2", num_classes=0, **mlp, **places)
    theirs.load_state_dict(checkpoint_filter_fn(dict(state), theirs))
    if chunked:
        state = {name.replace("blocks.", "blocks.0.", 1): tensor for name, tensor in state.items()}
    ours = vit.load(state, num_heads=HEADS)
    assert ours.pos_embed_interpolation == ("bicubic" if registers else "dinov2")
    assert_close(ours.forward_features(IMAGES), theirs.forward_features(IMAGES), **EXACT)


@pytest.mark.parametrize("kwargs", [{}, {"no_embed_class": True}, {"class_token": False, "pool": "map"}], ids=str)
def test_npz_files_are_those_of_google_as_timm_reads_them(kwargs, tmp_path):
    ours = randomised(vit.VisionTransformer(**OURS, mlp="gelu_tanh", pos_embed_interpolation="google", **kwargs))
    vit.save(ours, tmp_path / "model.npz", format="google")
    options = {"global_pool": "map", "class_token": False} if "pool" in kwargs else {}
    options |= {"no_embed_class": True} if "no_embed_class" in kwargs else {}
    theirs = of_timm(act_layer="gelu_tanh", **options)
    theirs.load_pretrained(str(tmp_path / "model.npz"))
    assert_close(ours(IMAGES), theirs(IMAGES), rtol=1e-6, atol=1e-6)  # timm reads into float32
    again = vit.load(tmp_path / "model.npz")
    assert again.config == ours.config
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in ours.state_dict().items())


def test_npz_files_may_hold_all_blocks_in_one_array_and_half_precision(tmp_path):
    ours = vit.VisionTransformer(**OURS, mlp="gelu_tanh", pos_embed_interpolation="google", no_embed_class=True)
    vit.save(ours, tmp_path / "model.npz", format="google")
    arrays = dict(np.load(tmp_path / "model.npz"))
    block = "Transformer/encoderblock_0/"
    names = [name.removeprefix(block) for name in arrays if name.startswith(block)]
    stacked = {
        f"params/Transformer/encoderblock/{name}": np.stack(
            [arrays.pop(f"Transformer/encoderblock_{i}/{name}") for i in range(DEPTH)]
        )
        for name in names
    }
    stacked |= {f"params/{name}": array for name, array in arrays.items()}
    half = torch.from_numpy(stacked["params/head/kernel"]).bfloat16()
    stacked["params/head/kernel"] = half.view(torch.int16).numpy().view("V2")
    np.savez(tmp_path / "stacked.npz", **stacked)
    again = vit.load(tmp_path / "stacked.npz")
    unread = {"params/Transformer/encoderblock/query_ln/scale": np.ones((DEPTH, 4), dtype=np.float32)}
    np.savez(tmp_path / "more.npz", **stacked | unread)
    with pytest.raises(ValueError, match="1 tensors that the backbone lacks"):
        vit.load(tmp_path / "more.npz")
    expected = ours.state_dict() | {"head.weight": half.float().T}
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in expected.items())


@pytest.mark.parametrize("suffix", [".pth", ".bin", ".pt", ".ckpt", ".safetensors"])
@pytest.mark.parametrize(
    ("wrapper", "prefix"), [(None, ""), ("model", "module."), ("teacher", "backbone."), ("state_dict", "model.")]
)
def test_tensors_are_found_inside_of_files_and_behind_prefixes(suffix, wrapper, prefix, tmp_path):
    state = of_timm().float().state_dict()
    prefixed = {prefix + name: tensor for name, tensor in state.items()}
    path = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file(prefixed, path)
    else:
        torch.save(prefixed if wrapper is None else {wrapper: prefixed, "epoch": 3}, path)
    model = vit.load(path, num_heads=HEADS)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert set(model.load_report.matched) == set(state)


def test_a_folder_of_transformers_tells_sizes_classes_and_normalisation(tmp_path):
    model = vit.VisionTransformer(
        (8, 12),
        4,
        embed_dim=DIM,
        depth=DEPTH,
        num_heads=HEADS,
        num_classes=2,
        norm_eps=1e-12,
        pos_embed_interpolation="transformers",
    ).eval()
    model.pretrained_cfg = {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7], "class_names": ["cat", "dog"]}
    vit.save(model, tmp_path / "folder", format="transformers")
    again = vit.load(tmp_path / "folder")
    assert again.config == model.config
    found = {name: again.pretrained_cfg[name] for name in model.pretrained_cfg}
    assert found == model.pretrained_cfg


def test_a_folder_may_hold_the_weights_in_several_files(tmp_path):
    state = {name: tensor.clone() for name, tensor in of_timm().float().state_dict().items()}
    names = sorted(state)
    weight_map = {}
    for part, chosen in enumerate((names[:9], names[9:])):
        file = f"model-{part}.safetensors"
        save_file({name: state[name] for name in chosen}, tmp_path / file)
        weight_map |= dict.fromkeys(chosen, file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit", "pretrained_cfg": {"mean": [0.1] * 3}}))
    model = vit.load(tmp_path, num_heads=HEADS)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert model.pretrained_cfg["mean"] == [0.1] * 3


OTHERS = {
    "a ResNet": lambda: timm.create_model("test_resnet"),
    "Swin": lambda: timm.create_model("swin_tiny_patch4_window7_224"),
    "BEiT": lambda: timm.create_model("beit_base_patch16_224", depth=1, embed_dim=24, num_heads=3),
    "a convolutional network of torchvision": lambda: torchvision.models.squeezenet1_1(),
    "ConvNeXt": lambda: timm.create_model("convnext_atto"),
}


@pytest.mark.parametrize("words", OTHERS)
def test_other_architectures_are_refused_by_name(words, tmp_path):
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in OTHERS[words]().state_dict().items()}
    state = {name: torch.zeros(shape) for name, shape in shapes.items() if len(shape)}
    torch.save(state, tmp_path / "model.pth")
    with pytest.raises(ValueError, match=rf"model\.pth .*{words}"):
        vit.load(tmp_path / "model.pth")


def changed(edit):
    state = of_timm().state_dict()
    edit(state)
    return state


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda state: state.update({"adapter.weight": torch.zeros(3)}),
            r"the state dict has 1 tensors that the backbone lacks: adapter\.weight .* strict=False leaves them out",
        ),
        (
            lambda state: state.pop("norm.bias"),
            r"norm\.bias is missing: strict=False leaves new tensors as initialised",
        ),
        (
            lambda state: state.pop("blocks.0.mlp.fc2.weight"),
            r"\(timm\): blocks\.0\.mlp\.fc2\.weight is missing, which",
        ),
        (lambda state: state["norm.bias"].fill_(float("nan")), r"24 of the 24 numbers of norm\.bias are NaN"),
        (lambda state: state.update({"norm.bias": torch.zeros(5)}), r"norm\.bias is \(5,\) and not \(24,\)"),
        (
            lambda state: state.update({"pos_embed": torch.ones(1, 14, 24)}),
            r"pos_embed has 14 positions, which are no square grid of patches: give the image_size of the training",
        ),
        (
            lambda state: state.update({"patch_embed.proj.weight": torch.zeros(24, 48)}),
            r"patch_embed\.proj\.weight has shape \(24, 48\), and 4 axes are expected",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_name_of_the_tensor(edit, message):
    with pytest.raises(ValueError, match=message):
        vit.load(changed(edit), num_heads=HEADS)


def test_what_does_not_fit_is_left_out_or_new_on_request():
    state = changed(lambda state: (state.pop("norm.bias"), state.update({"adapter.weight": torch.zeros(3)})))
    report = vit.load(state, num_heads=HEADS, strict=False).load_report
    assert report.dropped == ["adapter.weight"]
    assert report.fresh == ["norm.bias"]


def test_images_that_are_not_square_are_told_by_the_caller():
    theirs = of_timm(img_size=(8, 40))
    ours = vit.load(theirs.state_dict(), num_heads=HEADS, image_size=(8, 40))
    images = torch.randn(1, 3, 8, 40, dtype=torch.float64)
    assert ours.patch_embed.grid_size == (2, 10)
    assert_close(ours(images), theirs(images), **EXACT)


class Code:
    """Prints when it is unpickled."""

    def __reduce__(self):
        return (print, ("executed",))


def test_files_that_cannot_be_read_are_refused_and_nothing_is_executed(tmp_path, capsys):
    (tmp_path / "code.pth").write_bytes(pickle.dumps({"state_dict": Code()}))
    with pytest.raises(ValueError, match=r"code\.pth (is refused: it carries pickled code|is not a checkpoint)"):
        vit.load(tmp_path / "code.pth")
    np.savez(tmp_path / "objects.npz", a=np.array([Code()], dtype=object))
    with pytest.raises(ValueError, match=r"objects\.npz is no \.npz file of plain numbers"):
        vit.load(tmp_path / "objects.npz")
    assert "executed" not in capsys.readouterr().out
    torch.save(of_timm().state_dict(), tmp_path / "whole.pth")
    (tmp_path / "half.pth").write_bytes((tmp_path / "whole.pth").read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"half\.pth is (damaged|not a checkpoint)"):
        vit.load(tmp_path / "half.pth")
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(ValueError, match=r"model\.onnx ends in '\.onnx', and weights end in one of \.safe"):
        vit.load(tmp_path / "model.onnx")
    np.savez(tmp_path / "integers.npz", a=np.arange(3))
    with pytest.raises(ValueError, match=r"integers\.npz is not of weights: a holds int64"):
        vit.load(tmp_path / "integers.npz")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match=r"list\.pth holds a list, and a state dict is expected"):
        vit.load(tmp_path / "list.pth")
    with pytest.raises(ValueError, match=r"no config\.json in"):
        vit.load(tmp_path)


def test_torchscript_and_options_of_a_training_are_told_apart_from_code(tmp_path):
    with zipfile.ZipFile(tmp_path / "clip.pt", "w") as archive:  # as torch.jit.save makes it
        for name in ("clip/data.pkl", "clip/constants.pkl", "clip/code/model.py"):
            archive.writestr(zipfile.ZipInfo(name), b"")
    with pytest.raises(ValueError, match=r"clip\.pt is a TorchScript program: save the tensors of torch\.jit\.load"):
        vit.load(tmp_path / "clip.pt")
    torch.save({"args": argparse.Namespace(lr=0.1), "model": of_timm().state_dict()}, tmp_path / "best.pth.tar")
    assert vit.load(tmp_path / "best.pth.tar", num_heads=HEADS).embed_dim == DIM


def test_a_small_file_that_claims_many_numbers_is_refused(tmp_path):
    torch.save({"norm.weight": torch.zeros(1).expand(10**7, 10**6)}, tmp_path / "huge.pth")
    with pytest.raises(ValueError, match=r"huge\.pth is damaged: norm\.weight is no plain array of \(10000000"):
        vit.load(tmp_path / "huge.pth")


def test_activations_that_a_config_leaves_out_are_those_of_the_family(tmp_path):
    model = vit.VisionTransformer(
        16, 4, embed_dim=DIM, depth=1, num_heads=HEADS, num_classes=0, pool="map", class_token=False, mlp="gelu_tanh"
    )
    vit.save(model, tmp_path / "siglip", format="transformers")
    config = json.loads((tmp_path / "siglip/config.json").read_text())
    del config["hidden_act"]
    (tmp_path / "siglip/config.json").write_text(json.dumps({"vision_config": config}))
    assert vit.load(tmp_path / "siglip").config["mlp"] == "gelu_tanh"


def test_heads_that_nothing_tells_are_asked_for_and_never_guessed(tmp_path):
    state = dict(vit.VisionTransformer(embed_dim=192, depth=12).state_dict())
    torch.save(state, tmp_path / "model.pth")
    for source in (state, tmp_path / "model.pth", of_timm().state_dict()):
        with pytest.raises(ValueError, match=r"do not tell how many heads share the \d+ channels: give num_heads="):
            vit.load(source)
    assert vit.load(state, num_heads=6).config["num_heads"] == 6


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch14_dinov2"])
def test_heads_are_those_of_the_published_model_of_which_all_tensors_have_the_shapes(name):
    model = vit.create(name, num_classes=7)
    state = dict(model.state_dict())
    with pytest.warns(UserWarning, match=r"does not tell its number of heads: \d are those of the published model"):
        assert vit.load(state).config["num_heads"] == model.config["num_heads"]
    state["patch_embed.proj.weight"] = state["patch_embed.proj.weight"][:, :, 1:, 1:]
    with pytest.raises(ValueError, match="give num_heads="):
        vit.load(state)


def test_a_state_dict_of_ours_carries_its_arguments(tmp_path):
    model = vit.VisionTransformer(
        embed_dim=48, depth=2, num_heads=12, attention="window", attention_kwargs={"window": 2}
    )
    torch.save(model.state_dict(), tmp_path / "alone.pth")
    torch.save({"model": torch.nn.ModuleDict({"net": model}).state_dict()}, tmp_path / "inside.pth")
    images = torch.randn(2, 3, 32, 32)
    for source in (model.state_dict(), tmp_path / "alone.pth", tmp_path / "inside.pth"):
        loaded = vit.load(source)
        assert loaded.config == model.config
        assert torch.equal(loaded(images), model.eval()(images))
    assert list(model.state_dict()) == [name for name, _ in model.named_parameters()]
    damaged = model.state_dict()
    del damaged["blocks.1.norm2.bias"]
    with pytest.raises(ValueError, match=r"blocks\.1\.norm2\.bias is missing"):
        vit.load(damaged)


def test_a_folder_with_our_config_is_the_model_of_that_config(tmp_path):
    model = vit.VisionTransformer((32, 64), 8, embed_dim=48, depth=2, num_heads=12, attention="topk").eval()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(model.config | {"license": "MIT"}))
    images = torch.randn(2, 3, 32, 64)
    assert torch.equal(vit.load(tmp_path)(images), model(images))


def test_what_is_assumed_is_reported():
    with pytest.warns(UserWarning, match="3 are those of the published model whose tensors have these shapes"):
        report = vit.load(dict(vit.create("vit_tiny_patch16_224").state_dict())).load_report
    assert report.assumed == ["pool cls", "num_heads 3", "mlp gelu", "norm_eps 1e-06", BLOCKS, "mean and std of 0.5"]
    assert "assumed: pool cls, num_heads 3, mlp gelu, norm_eps 1e-06" in str(report)
    told = vit.load(of_timm().state_dict(), num_heads=HEADS, mlp="gelu_tanh", norm_eps=1e-5, pool="cls")
    assert told.load_report.assumed == [BLOCKS, "mean and std of 0.5"]
    assert (told.config["mlp"], told.config["norm_eps"]) == ("gelu_tanh", 1e-5)
    assert not vit.load(of_timm()).load_report.assumed


@pytest.mark.parametrize(
    ("resample", "assumed"),
    [
        ("bilinear", ["bicubic scaling of images, in place of bilinear"]),
        (2.0, ["bicubic scaling of images, in place of bilinear"]),
        (9, ["bicubic scaling of images, in place of 9"]),
        ([2], []),
        ({}, []),
    ],
)
def test_unusual_words_for_the_scaling_of_images_are_read_or_left_out(tmp_path, resample, assumed):
    ours = vit.VisionTransformer(image_size=16, patch_size=4, embed_dim=DIM, depth=1, num_heads=HEADS, norm_eps=1e-12)
    vit.save(ours, tmp_path / "folder", format="transformers")
    path = tmp_path / "folder/preprocessor_config.json"
    path.write_text(json.dumps({"image_mean": [0.1] * 3, "image_std": [0.2] * 3, "resample": resample}))
    assert vit.load(tmp_path / "folder").load_report.assumed == assumed


@pytest.mark.parametrize(
    ("told", "assumed"),
    [("bilinear", ["bicubic scaling of images, in place of bilinear"]), ("bicubic", []), (None, [])],
)
def test_another_scaling_of_images_than_ours_is_reported_as_assumed(tmp_path, told, assumed):
    module = of_timm()
    module.pretrained_cfg = {"mean": [0.1] * 3, "std": [0.2] * 3, "interpolation": told}
    loaded = vit.load(module)
    assert loaded.load_report.assumed == assumed
    assert "interpolation" not in loaded.pretrained_cfg
    ours = vit.VisionTransformer(image_size=16, patch_size=4, embed_dim=DIM, depth=1, num_heads=HEADS, norm_eps=1e-12)
    vit.save(ours, tmp_path / "folder", format="transformers")
    path = tmp_path / "folder/preprocessor_config.json"
    numbers = {"bilinear": 2, "bicubic": 3, None: None}
    path.write_text(json.dumps({"image_mean": [0.1] * 3, "image_std": [0.2] * 3, "resample": numbers[told]}))
    assert vit.load(tmp_path / "folder").load_report.assumed == assumed


@pytest.mark.parametrize(
    ("model", "told", "assumed"),
    [
        # 3 x 5 patches and the class token, or 4 x 4
        ({"image_size": (20, 12)}, {"pool": "cls"}, ["image_size 16"]),
        ({"image_size": (20, 12)}, {"image_size": (20, 12), "pool": "cls"}, []),
        ({"image_size": 16}, {"pool": "cls"}, []),
        ({"num_classes": 0}, {}, ["pool cls"]),
        ({"num_classes": 0}, {"pool": "mean"}, []),
        ({}, {}, ["pool cls"]),
        ({"pool": "mean"}, {}, ["pool mean"]),
        ({"pool": "mean", "class_token": False}, {}, []),
        ({"pool": "map", "class_token": False}, {}, []),
        ({"pool": "map", "class_token": False, "num_classes": 0}, {}, []),
    ],
)
def test_a_grid_or_a_pool_that_the_tensors_leave_open_is_reported_as_assumed(model, told, assumed):
    state = dict(
        vit.VisionTransformer(**{"image_size": 16, "embed_dim": 16, "depth": 1, "num_heads": 2} | model).state_dict()
    )
    known = {"num_heads": 2, "mlp": "gelu", "norm_eps": 1e-6}
    assert vit.load(state, **known, **told).load_report.assumed == [*assumed, BLOCKS, "mean and std of 0.5"]


def test_bare_tensors_of_ours_need_to_be_told_what_no_tensor_shows():
    sizes = {"image_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
    images = torch.randn(2, 3, 16, 16)
    for own in ({"attention": "window", "attention_kwargs": {"window": 2}}, {"norm": "post"}, {"pos_embed": "rope"}):
        model = vit.VisionTransformer(**sizes, **own).eval()
        state = dict(model.state_dict())  # without the config that model.state_dict() carries
        loaded = vit.load(state, num_heads=2, **own)
        assert_close(loaded(images), model(images))
        assert BLOCKS not in loaded.load_report.assumed or "pos_embed" in own
    with pytest.raises(ValueError, match="positions of the state dict are all zero, as in a model with rotary pos"):
        vit.load(state, num_heads=2)


@pytest.mark.parametrize("told", [{"patch_stride": 2}, {"patch_stride": 2, "image_size": (8, 8)}], ids=str)
def test_bare_tensors_of_overlapping_patches_need_their_stride(told):
    sizes = {"image_size": 8, "patch_size": 4, "patch_stride": 2, "embed_dim": 16, "depth": 1, "num_heads": 2}
    model = randomised(vit.VisionTransformer(**sizes)).float().eval()
    images = torch.randn(2, 3, 8, 8)
    loaded = vit.load(dict(model.state_dict()), num_heads=2, **told)
    assert_close(loaded(images), model(images))
    assert loaded.config["image_size"] in (8, (8, 8))
    assert BLOCKS in loaded.load_report.assumed
    assert "patches side by side" in BLOCKS


def test_a_size_with_as_many_patches_as_a_square_has_is_told_to_be_ambiguous():
    model = of_timm(img_size=(8, 32))  # 2 x 8 patches, or 4 x 4
    state = dict(model.state_dict())
    with pytest.warns(
        UserWarning, match=r"pos_embed has 17 positions, as many as images of \(16, 16\) and of \(8, 32\)"
    ):
        loaded = vit.load(state, num_heads=HEADS, image_size=(8, 32))
    assert loaded.load_report.resized == ["pos_embed"]


def test_a_head_on_the_mean_behind_the_norm_is_told_by_its_pool():
    model = of_timm(global_pool="avg", fc_norm=False).eval()
    loaded = vit.load(dict(model.state_dict()), num_heads=HEADS, pool="mean").double()
    assert_close(loaded(IMAGES), model(IMAGES), **EXACT)
    assert loaded.load_report.assumed[0] == "a head trained on pool mean, behind the norm"
    assert vit.load(dict(model.state_dict()), num_heads=HEADS, pool="mean", num_classes=2).config["fc_norm"] is None


@pytest.mark.parametrize("name", ["vit_attention_small_patch16_dinov3", "vit_of_somebody"])
def test_zeros_as_positions_are_not_taken_for_learned_ones_if_a_config_tells_something_else(tmp_path, name):
    sizes = OURS | {"num_heads": 6}  # of the small model
    rotary = {"pos_embed": "rope", "norm_eps": 1e-5, "qkv_bias": False, "layer_scale": 1e-5, "pool": "mean"}
    model = randomised(vit.VisionTransformer(**sizes, **rotary)).eval()
    with torch.no_grad():
        model.pos_embed.zero_()
    save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    config = {"architecture": name, "global_pool": "avg", "model_args": {"img_size": 16}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if name == "vit_of_somebody":
        with pytest.raises(
            ValueError, match="are all zero, as in a model with rotary positions: tell them, by pos_emb"
        ):
            vit.load(tmp_path, num_heads=6)
    else:
        assert_close(vit.load(tmp_path).double()(IMAGES), model(IMAGES), **EXACT)


def test_rotary_positions_beside_learned_ones_are_refused():
    model = timm.create_model("vit_small_patch16_dinov3", **SMALL | {"num_heads": 2}, use_abs_pos_emb=True)
    with pytest.raises(ValueError, match="it has rotary positions beside learned ones"):
        vit.load(model)


def test_bare_tensors_of_ours_with_a_mask_token_are_not_taken_for_dinov2():
    state = dict(vit.VisionTransformer(**OURS, mask_token=True).state_dict())
    with pytest.raises(ValueError, match=r"mask_token has shape \(1, 1, 24\), as in models of this package"):
        vit.load(state, num_heads=HEADS)


def test_the_usual_norm_eps_of_a_family_is_a_guess():
    config = ViTConfig(
        hidden_size=DIM, num_hidden_layers=1, num_attention_heads=HEADS, intermediate_size=48, layer_norm_eps=1e-3
    )
    state = ViTForImageClassification(config).state_dict()
    report = vit.load(state, num_heads=HEADS, mlp="gelu").load_report
    assert report.assumed == ["norm_eps 1e-12", "mean and std usual for transformers (ViT)"]


def test_a_head_without_its_weight_is_refused_with_a_remedy():
    state = dict(of_timm().state_dict())
    del state["head.weight"]
    with pytest.raises(ValueError, match=r"head\.bias is unknown: take a whole file of one model$"):
        vit.load(state, num_heads=HEADS)


def test_heads_that_the_tensors_tell_are_not_overruled(tmp_path):
    vit.save(vit.VisionTransformer(**OURS, mlp="gelu_tanh"), tmp_path / "model.npz", format="google")
    assert vit.load(tmp_path / "model.npz").config["num_heads"] == HEADS
    with pytest.raises(ValueError, match="holds a model with num_heads 3, and this one has num_heads 4"):
        vit.load(tmp_path / "model.npz", num_heads=4)


def test_an_npz_file_without_queries_is_refused_by_name(tmp_path):
    vit.save(vit.VisionTransformer(**OURS, mlp="gelu_tanh"), tmp_path / "model.npz", format="google")
    arrays = {name: array for name, array in np.load(tmp_path / "model.npz").items() if "query" not in name}
    np.savez(tmp_path / "damaged.npz", **arrays)
    with pytest.raises(ValueError, match=r"damaged\.npz has \d+ tensors that the backbone lacks"):
        vit.load(tmp_path / "damaged.npz")


def test_images_that_patches_do_not_divide_lose_the_pixels_beyond_whole_ones():
    """As SigLIP's so400m, whose patches of 14 pixels cover 378 of 384."""
    theirs = of_timm(img_size=18)
    ours = vit.load(theirs)
    assert ours.patch_embed.image_size == (16, 16)
    images = torch.randn(2, 3, 18, 18, dtype=torch.float64)
    assert_close(ours(images[..., :16, :16]), theirs(images), **EXACT)


def test_the_epsilon_of_the_norms_is_that_of_queries_and_keys_as_well():
    theirs = of_timm(qk_norm=True, norm_layer=partial(torch.nn.LayerNorm, eps=0.1))
    assert_close(vit.load(theirs)(IMAGES), theirs(IMAGES), **EXACT)


def test_a_gated_mlp_with_another_activation_than_silu_is_refused(tmp_path):
    sizes = {"embed_dim": DIM, "depth": 1, "num_heads": HEADS, "num_classes": 0, "layer_scale": 0.1, "mlp": "swiglu"}
    model = vit.VisionTransformer(16, 4, pos_embed="rope", qkv_bias=False, **sizes)
    vit.save(model, tmp_path / "dinov3", format="transformers")
    config = tmp_path / "dinov3/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_act": "gelu"}))
    with pytest.raises(ValueError, match="hidden_act 'gelu' gates the MLP, and the backbone has 'silu' there"):
        vit.load(tmp_path / "dinov3")


def test_a_live_model_of_transformers_tells_its_classes():
    config = ViTConfig(hidden_size=DIM, num_hidden_layers=1, num_attention_heads=HEADS, intermediate_size=48)
    config.image_size, config.patch_size, config.id2label = 16, 4, {0: "cat", 1: "dog"}
    assert vit.load(ViTForImageClassification(config).eval()).pretrained_cfg["class_names"] == ["cat", "dog"]


def test_names_of_more_than_ten_classes_keep_the_order_of_their_numbers(tmp_path):
    config = ViTConfig(hidden_size=DIM, num_hidden_layers=1, num_attention_heads=HEADS, intermediate_size=48)
    config.image_size, config.patch_size = 16, 4
    config.id2label = {number: f"class {number}" for number in range(12)}
    ViTForImageClassification(config).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    stored = json.loads(file.read_text())
    stored["id2label"] = dict(sorted(stored["id2label"].items()))  # "10" before "2", as JSON may be sorted
    file.write_text(json.dumps(stored))
    assert vit.load(tmp_path).pretrained_cfg["class_names"] == [f"class {number}" for number in range(12)]


def test_a_missing_file_is_named(tmp_path):
    for name in ("x.npz", "x.pth", "x.bin"):
        with pytest.raises(ValueError, match=rf"no file at .*{re.escape(name)}"):
            vit.load(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("vit_tiny_patch16_224", {"global_pool": "max"}, "its pooling is 'max'"),
        ("vit_tiny_patch16_224", {"global_pool": "avg", "pool_include_prefix": True}, "'avg' with 1 prefix tokens inc"),
        ("vit_tiny_patch16_224", {"global_pool": "map"}, "its pooling is 'map' with 1 prefix tokens"),
        ("vit_base_patch16_rpn_224", {"class_token": False}, "its blocks are ResPostBlock of timm"),
        ("vit_small_patch16_rope_224", {}, "EvaBlock and RotaryEmbedding"),
    ],
)
def test_models_of_timm_that_compute_something_else_are_refused(name, kwargs, message):
    with pytest.raises(ValueError, match=message):
        vit.load(of_timm(name, **kwargs))


def test_positions_that_are_not_stored_are_no_missing_positions():
    state = of_timm("deit_tiny_distilled_patch16_224").state_dict()
    del state["pos_embed"]
    with pytest.raises(ValueError, match="pos_embed is missing"):
        vit.load(state, num_heads=HEADS)


def test_a_colour_model_becomes_grey_and_back():
    grey = vit.load("cifar10", in_channels=1)
    assert len(grey.pretrained_cfg["mean"]) == 1
    colour = vit.load(grey, in_channels=3)
    assert colour.pretrained_cfg["mean"] == pytest.approx(grey.pretrained_cfg["mean"] * 3)


def test_a_new_head_is_saved_without_the_old_names(tmp_path):
    model = vit.load("cifar10")
    model.reset_classifier(3)
    vit.save(model, tmp_path / "m.safetensors")
    assert vit.load(tmp_path / "m.safetensors").pretrained_cfg["class_names"] is None


def test_checkpoints_of_other_trainings_with_lightning_are_read(tmp_path):
    state = {f"model.{name}": tensor for name, tensor in of_timm().state_dict().items()}
    torch.save({"state_dict": state, "hyper_parameters": {"learning_rate": 0.1}}, tmp_path / "other.ckpt")
    assert vit.load(tmp_path / "other.ckpt", num_heads=HEADS).embed_dim == DIM


def test_the_hub_folder_of_timm_tells_pool_heads_names_and_crop(tmp_path):
    model = of_timm(num_classes=2, global_pool="avg", fc_norm=False)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    config = {"architecture": "vit_tiny_patch16_224", "global_pool": "avg", "label_names": ["cat", "dog"]}
    config |= {"pretrained_cfg": {"mean": [0.1, 0.2, 0.3], "std": [0.5] * 3, "crop_pct": 0.9}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = vit.load(tmp_path)
    assert again.config["num_heads"] == HEADS
    assert again.pretrained_cfg["class_names"] == ["cat", "dog"]
    assert again.pretrained_cfg["crop_ratio"] == 0.9
    assert_close(again(IMAGES), model(IMAGES), **EXACT)


@pytest.mark.parametrize("name", ["ls_1.gamma", "attn.ln.weight"])
def test_a_part_of_the_visual_tower_that_the_backbone_lacks_is_no_part_of_the_text_tower(name):
    state = openai_state() | {f"visual.transformer.resblocks.0.{name}": torch.ones(DIM)}
    with pytest.raises(ValueError, match=f"1 tensors that the backbone lacks: visual.*{re.escape(name)}"):
        vit.load(state, num_heads=HEADS)


def test_an_unknown_tensor_in_a_chunk_of_blocks_is_refused():
    state = dinov2_state(0, False)
    chunked = {re.sub(r"^blocks\.", "blocks.0.", name): tensor for name, tensor in state.items()}
    assert vit.load(chunked, num_heads=HEADS).load_report.dropped == []
    with pytest.raises(ValueError, match=r"1 tensors that the backbone lacks: blocks\.0\.0\.attn\.k_bias"):
        vit.load(chunked | {"blocks.0.0.attn.k_bias": torch.ones(DIM)}, num_heads=HEADS)


def test_attention_pooling_beside_prefix_tokens_is_refused():
    model = of_timm(global_pool="map", num_classes=5)
    with pytest.raises(ValueError, match="pools by attention beside a class token or registers"):
        vit.load(model.state_dict(), num_heads=HEADS)


def folder_of(tmp_path, **config):
    torch.save(of_timm().state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize("name", ["vit_small_patch16_rope_ape_224", "eva02_tiny_patch14_224", "beit_base_patch16_224"])
def test_architectures_of_timm_with_other_parts_are_refused_by_name(name, tmp_path):
    with pytest.raises(ValueError, match=f"architecture '{name}' is of timm's .* models, which the backbone does not"):
        vit.load(folder_of(tmp_path, architecture=name))


@pytest.mark.parametrize(
    ("name", "pool", "message"),
    [
        ("vit_base_patch16_rpn_224", "avg", "its blocks are ResPostBlock of timm, which compute something else"),
        ("vit_tiny_patch16_224", "max", "its pooling is 'max'"),
    ],
)
def test_a_folder_of_timm_is_refused_for_what_its_module_is_refused_for(tmp_path, name, pool, message):
    theirs = timm.create_model(name, **SMALL, global_pool=pool, class_token=False)
    with pytest.raises(ValueError, match=message):
        vit.load(theirs)
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    config = {"architecture": name, "global_pool": pool, "model_args": SMALL | {"class_token": False}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        vit.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        (
            "vit_small_patch16_dinov3",
            {"rope_temperature": 1e4},
            "have temperature 10000.0, and those of the backbone 100",
        ),
        ("vit_small_patch16_dinov3", {"rope_rotate_half": False}, "have rotate_half False, and those of the backbone"),
        (
            "vit_tiny_patch16_224",
            {"mlp_layer": timm.layers.GluMlp, "act_layer": torch.nn.SiLU},
            "its MLP is gated by the second half",
        ),
    ],
)
def test_a_module_of_timm_with_other_settings_is_refused(name, other, message):
    with pytest.raises(ValueError, match=message):
        vit.load(timm.create_model(name, **SMALL, **other))


def test_of_two_models_in_a_file_none_is_taken_by_chance():
    state = vit.VisionTransformer(**OURS).state_dict()
    both = {f"{who}.{name}": tensor for who in ("student", "teacher") for name, tensor in state.items()}
    with pytest.raises(ValueError, match=r"there are several models \(student\., teacher\.\): give the tensors of one"):
        vit.load(both, strict=False, num_heads=HEADS)


def test_the_blocks_of_a_deeper_text_model_are_none_of_the_images():
    sizes = {name: OURS[name] for name in ("image_size", "patch_size", "embed_dim", "num_heads")}
    images, texts = (vit.VisionTransformer(**sizes, num_classes=8, pre_norm=True, depth=depth) for depth in (2, 4))
    state = OPENAI.write(images.state_dict(), {}, "visual.")
    of_texts = OPENAI.write(texts.state_dict(), {})
    state |= {name: tensor for name, tensor in of_texts.items() if name.startswith("transformer.")}
    assert vit.load(state, num_heads=HEADS, mlp="gelu", norm_eps=1e-6).config["depth"] == 2


def test_the_name_of_a_siglip_of_timm_tells_its_activation(tmp_path):
    names = timm.list_models("vit_*siglip*")
    assert len(names) > 30
    for name in names:
        with torch.device("meta"):
            act = timm.create_model(name, depth=1).blocks[0].mlp.act
        assert bool(GELU_TANH.match(name)) == (type(act).__name__ == "GELUTanh"), name
    folder = folder_of(tmp_path, architecture="vit_so400m_patch16_siglip_256")
    assert vit.load(folder, num_heads=HEADS).config["mlp"] == "gelu_tanh"


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "vit", "image_size": "32"},
        {"model_type": "vit", "image_size": {"height": 32}},
        {"model_type": "vit", "patch_size": 0},
        {"vision_config": [1]},
        {"architecture": "vit", "pretrained_cfg": [1]},
        {"architecture": "vit", "model_args": [1]},
        {"architecture": "vit", "global_pool": ["avg"]},
        {"architecture": "vit", "label_names": 5},
    ],
    ids=str,
)
def test_a_config_with_values_of_another_kind_is_a_damaged_file(config, tmp_path):
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
        vit.load(folder_of(tmp_path, **config), num_heads=HEADS)


@pytest.mark.parametrize("theta", [{"rope_theta": 10.0}, {"rope_parameters": {"rope_theta": 10.0}}], ids=str)
def test_rotary_positions_of_another_base_are_refused(theta):
    with pytest.raises(
        ValueError, match=r"rope_theta 10.0 is not 100, which the rotary positions of the backbone have"
    ):
        arguments_in(theta)
    assert arguments_in({"rope_theta": 100.0}) == {}


def test_a_live_model_whose_modules_were_replaced_is_refused():
    model = vit.VisionTransformer(embed_dim=24, depth=1, num_heads=3)
    model.blocks[0].mlp.act = torch.nn.ReLU()
    with pytest.raises(ValueError, match=r"blocks\.0\.mlp\.act is not as model\.config describes it"):
        vit.load(model)


def test_the_report_tells_what_was_computed_from_several_tensors_or_is_zero():
    report = vit.load(openai_state(), num_heads=HEADS).load_report
    assert report.zeros == ["head.bias", "patch_embed.proj.bias"]
    assert "mlp quick_gelu" in report.assumed
    assert report.folded == []
    of_dinov2 = vit.load(dinov2_state(4, False), num_heads=HEADS).load_report
    assert "cls_token" in of_dinov2.folded
    distilled = of_timm("deit_tiny_distilled_patch16_224")
    report = vit.load(distilled.state_dict(), num_heads=HEADS).load_report
    assert report.folded == ["head.bias", "head.weight"]
    assert not {"head.bias", "head.weight"} & {*report.matched, *report.renamed}
    assert "cls_token" not in of_dinov2.matched + of_dinov2.renamed


# "timm:NAME"


@pytest.fixture
def tiny_of_timm(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224").double().eval()
    torch.save(model.state_dict(), tmp_path / "tiny.pth")
    return model, tmp_path / "tiny.pth"


def test_a_name_of_timm_with_a_file_is_built_by_timm_and_converted(tiny_of_timm):
    theirs, file = tiny_of_timm
    ours = vit.load(f"timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k={file}")
    images = torch.randn(1, 3, 224, 224)
    assert_close(ours(images), theirs.float()(images), rtol=1e-4, atol=1e-5)
    assert ours.config["num_heads"] == 3
    assert ours.pretrained_cfg["mean"] == [0.5, 0.5, 0.5]
    names = ours.pretrained_cfg["class_names"]
    assert (names[281], names[585]) == ("tabby, tabby cat", "hair spray")
    assert names[134].startswith("crane: large long-necked wading bird")
    assert names[517].startswith("crane: lifts and moves heavy objects")
    assert str(ours.load_report).startswith(f"weights of timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k={file} (timm)")


def test_a_name_of_timm_asks_for_its_pretrained_weights(monkeypatch):
    asked = []

    def create_model(name, pretrained, pretrained_cfg_overlay):
        asked.append((name, pretrained, pretrained_cfg_overlay))
        return timm.models.VisionTransformer(img_size=32, embed_dim=12, depth=1, num_heads=3)

    monkeypatch.setattr(timm, "create_model", create_model)
    assert vit.load("timm:vit_base_patch16_224.mae", num_classes=2).config["num_heads"] == 3
    assert asked == [("vit_base_patch16_224.mae", True, None)]


def test_classes_have_no_names_of_imagenet_unless_the_name_of_the_weights_says_so():
    for tag, num_classes in (("augreg_in21k_ft_in1k", 7), ("mae", 1000)):
        model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=num_classes)
        model.pretrained_cfg |= {"tag": tag}
        assert timm_source._names_of_imagenet(model) == {}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:vit_tinny", r"^timm cannot give timm:vit_tinny: Unknown model \(vit_tinny\)$"),
        ("timm:vit_tiny_patch16_224.nix", "Invalid pretrained tag"),
        ("timm:vit_small_patch16_224={file}", "size mismatch for cls_token"),
        ("timm:vit_tiny_patch16_224={file}x", r"tiny\.pthx"),
        ("timm:vit_tiny_patch16_224", "timm:vit_tiny_patch16_224=FILE needs no network"),
    ],
)
def test_what_timm_cannot_give_is_one_line(tiny_of_timm, name, message, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=message) as caught:
        vit.load(name.format(file=tiny_of_timm[1]))
    assert "\n" not in str(caught.value)


def test_a_file_for_a_name_of_timm_executes_nothing(tmp_path):
    torch.save({"weights": torch.nn.Linear(2, 2)}, tmp_path / "program.pth")
    with pytest.raises(ValueError, match="program"):
        vit.load(f"timm:vit_tiny_patch16_224={tmp_path / 'program.pth'}")


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "vit_xsmall_patch16_clip_224", "test_vit2"])
def test_a_folder_of_timm_has_the_logits_of_its_model(name, tmp_path):
    torch.manual_seed(0)
    theirs = timm.create_model(name).eval()
    timm.models.save_for_hf(theirs, tmp_path)
    images = torch.randn(2, *theirs.default_cfg["input_size"])
    assert_close(vit.load(tmp_path)(images), theirs(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("names", "found"),
    [({"1": "dog", "0": "cat"}, ["cat", "dog"]), ({"1": "cat", "2": "dog"}, None), ({"0": "cat", "2": "dog"}, None)],
)
def test_class_names_by_number_belong_to_the_rows_of_the_head(names, found):
    of_transformers = partial(transformers_source._read_names, {"id2label": names}, "config.json")
    for read in (of_transformers, partial(timm_source.read_timm_data, {"label_names": names})):
        if found is None:
            with pytest.raises(ValueError, match="number them from 0 without gaps"):
                read()
        else:
            assert read()["class_names"] == found


@pytest.mark.parametrize("name", ["hf-hub:someone/x", "local-dir:/elsewhere"])
def test_an_architecture_that_names_another_place_is_refused(name):
    with pytest.raises(ValueError, match="is no name of a model of timm"):
        timm_source._read_architecture(name, {})
