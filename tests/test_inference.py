"""``vit.optimize``: the logits of the model, from a program that an engine runs."""

import copy
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from shutil import which

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vit
from vit import inference
from vit.inference import ClassTokenOnly, OptimizedModel, optimize, reads_class_token_only

SIZES = {"image_size": (20, 28), "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
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


def model_of(**kwargs):
    torch.manual_seed(0)
    model = vit.VisionTransformer(**SIZES | kwargs).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def images_for(model, batch, seed=1):
    size = (batch, model.patch_embed.in_channels, *model.patch_embed.image_size)
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def eager(monkeypatch):
    """Let one engine "eager" run the copy of the model itself, which takes no time to make."""
    made = {"eager": lambda model, dtype, calibration: torch.no_grad()(inference.without_unread(model).__call__)}
    monkeypatch.setattr(inference, "ENGINES", made)
    monkeypatch.setattr(inference, "_engines", lambda dtype: list(made))
    return made


# The last block without the tokens that are not read.


@pytest.mark.parametrize(
    "kwargs",
    [
        *({}, {"num_registers": 2, "layer_scale": 0.3, "qk_norm": True}, {"mlp": "swiglu", "pre_norm": True}),
        *({"depth": 1}, {"fc_norm": True, "num_classes": 0}, {"num_kv_heads": 1}, {"tie_qkv": True}),
        *({"attention": name} for name in ("linear", "talking", "differential", "gated", "simplified")),
    ],
    ids=str,
)
def test_a_last_block_that_computes_the_class_token_alone_gives_the_same_logits(kwargs):
    model = model_of(**kwargs)
    if not reads_class_token_only(model):  # a mechanism whose queries depend on each other
        assert not model.blocks[-1].attn.mechanism.independent_queries
        return
    images = images_for(model, 3)
    lengths = []
    model.blocks[-1].mlp.fc1.register_forward_hook(lambda module, inputs, output: lengths.append(output.shape[1]))
    logits = ClassTokenOnly(model)(images)
    assert lengths == [1]
    expected = model.forward_head(model.forward_features(images))
    assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_all_tokens_are_computed_where_more_than_the_class_token_is_read():
    assert reads_class_token_only(model_of())
    for kwargs in ({"pool": "mean"}, {"pool": "cls+mean"}, {"pos_embed": "rope"}, {"attention": "window"}):
        assert not reads_class_token_only(model_of(**kwargs)), kwargs
    hooked = model_of()
    hooked.blocks[-1].mlp.register_forward_hook(lambda *_: None)
    replaced = model_of()
    replaced.forward_head = lambda tokens, pre_logits=False: tokens.mean(1)
    of_another_class = model_of()
    of_another_class.__class__ = type("Other", (vit.VisionTransformer,), {})
    other_block = model_of()
    other_block.blocks[-1] = nn.Identity()
    assert not any(map(reads_class_token_only, (hooked, replaced, of_another_class, other_block)))


# What is checked, whichever engine runs.


def test_a_program_says_what_it_is_and_how_near(eager):
    model = model_of()
    fast = vit.optimize(model)
    assert isinstance(fast, OptimizedModel)
    assert repr(fast).startswith("OptimizedModel(engine=eager, dtype=float32, image=(3, 20, 28), difference=")
    assert fast.difference < 1e-6
    assert fast.agreement is None
    assert fast.seconds > 0
    assert not list(fast.parameters())


def test_the_program_keeps_the_weights_that_the_model_had(eager):
    model = model_of()
    fast, images = optimize(model), images_for(model, 4)
    before = fast(images)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert torch.equal(fast(images), before)
    assert torch.equal(copy.deepcopy(fast)(images), before)


def test_images_of_any_number_and_layout_are_taken(eager):
    model = model_of()
    fast, images = optimize(model), images_for(model, 7)
    for part in (images, images[:1], images[2:4], images[::2], images.to(memory_format=torch.channels_last)):
        assert_close(fast(part), model(part), rtol=1e-5, atol=1e-5)
    assert fast(images[:0]).shape == (0, 5)
    assert vit.optimize(model_of(num_classes=0, pool="cls+mean"))(images[:0]).shape == (0, 48)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (torch.zeros(2, 3, 20, 24), r"images have shape \(2, 3, 20, 24\), but this program takes \(batch, 3, 20, 28\)"),
        (torch.zeros(2, 1, 20, 28), r"images have shape \(2, 1, 20, 28\)"),
        (torch.zeros(3, 20, 28), r"images have shape \(3, 20, 28\)"),
        ([torch.zeros(3, 20, 28)], r"a list is given: give a tensor of normalised images"),
        (torch.zeros(2, 3, 20, 28, dtype=torch.uint8), r"images are torch\.uint8 on cpu, but .*float32"),
        (torch.zeros(2, 3, 20, 28, dtype=torch.bfloat16), r"images are torch\.bfloat16 on cpu"),
        (torch.zeros(2, 3, 20, 28, device="meta"), r"images are torch\.float32 on meta"),
    ],
    ids=["size", "channels", "axes", "list", "bytes", "bfloat16", "device"],
)
def test_other_images_are_refused(eager, images, said):
    with pytest.raises(ValueError, match=said):
        optimize(model_of())(images)


@pytest.mark.parametrize(
    ("model", "arguments", "said"),
    [
        (lambda: model_of().train(), {}, r"the model is in training mode: call model\.eval\(\) first"),
        (lambda: model_of().double(), {}, r"the weights are torch\.float64 on cpu: optimize a model of torch\.float32"),
        (lambda: model_of().to("meta"), {}, r"the weights are torch\.float32 on meta"),
        (lambda: nn.Linear(2, 2), {}, r"a Linear is given: vit\.optimize takes a vit\.VisionTransformer"),
        (model_of, {"dtype": torch.float16}, r"dtype torch\.float16 must be torch\.float32, torch\.bfloat16 or"),
        (model_of, {"engine": "onnx"}, "engine 'onnx'"),
        (model_of, {"dtype": torch.int8}, "int8 needs calibration: a tensor of about 300 normalised training images"),
        (model_of, {"calibration": torch.zeros(2, 3, 20, 28)}, r"calibration is for torch\.int8, and dtype is"),
        (model_of, {"dtype": torch.int8, "calibration": torch.zeros(9, 3, 8, 8)}, r"calibration has shape \(9, 3, 8"),
        (model_of, {"dtype": torch.int8, "calibration": torch.zeros(0, 3, 20, 28)}, "about 300 images"),
        (
            model_of,
            {"dtype": torch.int8, "calibration": [1, 2]},
            r"calibration is a list: give a tensor \(N, 3, 20, 28",
        ),
        (model_of, {"dtype": torch.int8, "calibration": torch.full((2, 3, 20, 28), torch.nan)}, "must be finite"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_optimised_is_refused(eager, model, arguments, said):
    with pytest.raises(ValueError, match=said):
        optimize(model(), **arguments)


@pytest.mark.parametrize("wrong", [1.01, torch.nan, torch.inf])
def test_a_program_with_other_logits_is_refused(eager, wrong):
    eager["eager"] = lambda model, dtype, calibration: lambda images: wrong * model(images)
    with pytest.raises(ValueError, match=r"cannot be optimised: eager: the logits in torch\.float32 differ from the"):
        optimize(model_of())


def test_a_program_that_is_wrong_for_one_image_alone_is_refused(eager):
    eager["eager"] = lambda model, dtype, calibration: lambda images: model(images) + (len(images) == 1)
    with pytest.raises(ValueError, match="the logits in"):
        optimize(model_of())


def test_int8_is_refused_where_too_many_predictions_change(eager):
    eager["eager"] = lambda model, dtype, calibration: lambda images: model(images) * torch.tensor([1, 1, 1, 1, 0.8])
    model = model_of()
    nn.init.zeros_(model.head.weight)
    model.head.bias.data = torch.tensor([0.0, 0, 0, 0.9, 1])
    with pytest.raises(ValueError, match=r"only 0\.0% of the calibration images keep their predicted class"):
        optimize(model, torch.int8, images_for(model, 10))


def test_logits_that_are_all_zero_are_equal(eager):
    model = model_of()
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    assert optimize(model).difference == 0


def test_the_next_engine_is_taken_where_one_fails(eager):
    def fails(model, dtype, calibration):
        raise RuntimeError("no rule\nfor this")

    second = eager.pop("eager")
    eager |= {"first": fails, "second": second}
    assert optimize(model_of()).engine == "second"
    eager["second"] = fails
    with pytest.raises(ValueError, match="cannot be optimised: first: no rule for this; second: no rule for this"):
        optimize(model_of())
    with pytest.raises(ValueError, match=r"cannot be optimised: first: no rule for this$"):
        optimize(model_of(), engine="first")


def test_a_program_cannot_be_trained(eager):
    fast = optimize(model_of())
    assert fast.eval() is fast
    with pytest.raises(ValueError, match=r"an optimised model cannot be trained"):
        fast.train()


def test_the_surroundings_of_the_call_change_nothing(eager):
    model = model_of()
    images = images_for(model, 3)
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        fast = optimize(model)
        assert fast.difference < 1e-6
    assert not fast(images).requires_grad


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


# The engines.


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
    check(fast, model, inference.TOLERANCES[dtype])


# Both engines take this program; that of the other kinds of models runs in OpenVINO below.
@pytest.mark.parametrize("kwargs", KINDS[:2], ids=str)
def test_the_program_of_an_engine_computes_the_logits(kwargs):
    model = model_of(**kwargs)
    with torch.no_grad():
        program = inference.batch_program(model).module()
        for batch in (1, 2, 7):
            images = images_for(model, batch)
            assert_close(program(images), model(images), rtol=1e-4, atol=1e-4)


@needs_openvino
@of_engines
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_openvino_computes_the_logits(dtype):
    model = model_of()
    fast = optimize(model, dtype, engine="openvino")
    check(fast, model, inference.TOLERANCES[dtype])
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
