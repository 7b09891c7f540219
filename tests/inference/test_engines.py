"""The engines compute the logits of the model."""

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from shutil import which

import pytest
import torch
from torch.testing import assert_close

import vit
from tests.inference.small_models import images_for, model_of
from vit.inference import optimize
from vit.inference.class_token_only import without_unread
from vit.inference.engines import batch_program, image_shape
from vit.inference.optimized_model import TOLERANCES

needs_openvino = pytest.mark.skipif(not find_spec("openvino"), reason="openvino is not installed")
needs_nncf = pytest.mark.skipif(not find_spec("nncf"), reason="nncf is not installed")
needs_compiler = pytest.mark.skipif(not (which("g++") or which("clang++")), reason="there is no C++ compiler")
of_engines = pytest.mark.filterwarnings("ignore")
KINDS = [
    {},
    *({"pool": pool} for pool in ("mean", "cls+mean", "map")),
    {"pool": "cls+dist", "num_registers": 1},
    *({"pos_embed": positions} for positions in ("sincos", "none", "rope", "rope_eva")),
    *({"mlp": mlp} for mlp in ("gelu_tanh", "quick_gelu", "swiglu")),
    {"num_registers": 2, "layer_scale": 0.3, "qk_norm": True, "pre_norm": True, "fc_norm": True},
    {"num_kv_heads": 1, "no_embed_class": True, "qkv_bias": False},
    {"num_classes": 0, "pool": "mean", "class_token": False},
    {"num_classes": 0},
    {"num_classes": 1},
    {"image_size": (11, 13), "pad_images": True},
    {"image_size": (7, 21), "patch_size": 7, "in_channels": 1},
    {"patch_stride": 2},
    {"attention": ["window", "softmax"], "attention_kwargs": {"window": {"window": 2}}},
    *({"attention": name} for name in ("linear", "talking", "differential", "gated", "positional", "uniform")),
    {"attention": "topk", "attention_kwargs": {"k": 4}},
]


def test_without_an_engine_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ValueError, match=r"this needs openvino, .*: pip install 'vit-attention\[openvino\]'"):
        optimize(model_of(), engine="openvino")


def test_without_a_cpp_compiler_the_error_says_what_to_install(monkeypatch):
    import torch._inductor.cpp_builder as builder
    from torch._inductor.exc import InvalidCxxCompiler

    def missing():
        raise InvalidCxxCompiler

    monkeypatch.setattr(builder, "get_cpp_compiler", missing)
    with pytest.raises(ValueError, match=r"needs a C\+\+ compiler, and none is there: install g\+\+ or clang"):
        optimize(model_of(), engine="compile")


def check(fast, model, tolerance):
    """Compare the two, in batches of several sizes and from several threads."""
    images = images_for(model, 7)
    with torch.no_grad():
        expected = model(images)
    scale = expected.abs().max().item()
    for batch in (images, images[:1], images[1:4], images[::2]):
        logits = fast(batch)
        assert logits.dtype == torch.float32
        assert_close(logits, model(batch).detach(), rtol=0, atol=tolerance * scale)
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        assert_close(fast(images), expected, rtol=0, atol=tolerance * scale)
    with ThreadPoolExecutor(4) as pool:
        for logits in pool.map(fast, [images] * 8):
            assert_close(logits, expected, rtol=0, atol=tolerance * scale)


@needs_compiler
@of_engines
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_torchs_compiler_computes_the_logits(dtype):
    model = model_of()
    fast = optimize(model, dtype, engine="compile")
    assert fast.engine == "compile"
    check(fast, model, TOLERANCES[dtype])


# Both engines take this program; that of the other kinds of models runs in OpenVINO below.
@pytest.mark.parametrize("kwargs", KINDS[:2], ids=str)
def test_the_program_of_an_engine_computes_the_logits(kwargs):
    model = model_of(**kwargs)
    with torch.no_grad():
        program = batch_program(without_unread(model), image_shape(model)).module()
        for batch in (1, 2, 7):
            images = images_for(model, batch)
            assert_close(program(images), model(images), rtol=1e-4, atol=1e-4)


@needs_openvino
@of_engines
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_openvino_computes_the_logits(dtype):
    model = model_of()
    fast = optimize(model, dtype, engine="openvino")
    check(fast, model, TOLERANCES[dtype])
    images = images_for(model, 4)
    before = fast(images)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert torch.equal(fast(images), before)  # it shares no memory with the model


@needs_openvino
@of_engines
@pytest.mark.parametrize("kwargs", KINDS[1:], ids=str)
def test_openvino_computes_the_logits_of_each_kind_of_model(kwargs):
    model = model_of(**kwargs)
    check(optimize(model, engine="openvino"), model, 1e-4)


@needs_nncf
@of_engines
def test_int8_predicts_as_the_packaged_model():
    model = vit.load("cifar10")
    images = images_for(model, 40)
    fast = optimize(model, torch.int8, images)
    assert fast.engine == "openvino"
    assert fast.agreement >= 0.95
    assert 1e-4 < fast.difference < 0.25
    assert "dtype=int8" in repr(fast)
    check(fast, model, 0.25)
