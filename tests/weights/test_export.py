"""Programs of torch.export and ONNX: the logits of the model, at any size, from any example."""

import sys

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim
from torch.testing import assert_close

import vit
from vit.weights.export import _sizes, export, export_program

SIZES = {"image_size": (48, 32), "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
ASKED = [(48, 32), (32, 48), (8, 8), (12, 60), (96, 64), (20, 32)]  # pixels; the first is that of the training


def model_of(**kwargs):
    torch.manual_seed(0)
    model = vit.VisionTransformer(**SIZES | kwargs).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def check(program, model):
    for batch, size in zip((1, 2, 3, 4, 5, 6), ASKED, strict=True):
        images = torch.randn(batch, model.patch_embed.in_channels, *size)
        assert_close(program(images), model(images), rtol=1e-5, atol=1e-5)


# Positions take one branch at the size of the training and another at other sizes; a strict export reads the code in
# another way than a loose one. Both branches and both ways are exported.
@pytest.mark.parametrize(
    ("example", "strict"),
    [((48, 40), False), ((48, 32), True)],
    ids=["another size, loose", "size of the training, strict"],
)
def test_an_exported_program_runs_at_any_size_from_either_example(example, strict):
    model = model_of()
    shapes = {0: Dim("batch"), 2: 4 * Dim("rows", min=2), 3: 4 * Dim("columns", min=2)}
    program = torch.export.export(model, (torch.zeros(2, 3, *example),), dynamic_shapes=(shapes,), strict=strict)
    check(program.module(), model)


def test_sizes_may_be_left_to_torch():
    model = model_of(depth=1)
    shapes = {0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}
    program = torch.export.export(model, (torch.zeros(2, 3, 48, 32),), dynamic_shapes=(shapes,))
    check(program.module(), model)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"pos_embed": "rope"},
        {"pos_embed_interpolation": "dinov2", "pool": "map"},
        {"pos_embed_interpolation": "torchvision", "pool": "mean", "class_token": False},
        {"mlp": "swiglu", "num_registers": 2, "no_embed_class": True, "patch_stride": 2},
    ],
    ids=str,
)
def test_each_kind_of_model_is_exported(kwargs):
    model = model_of(depth=1, **kwargs)
    check(export_program(model).module(), model)


def test_a_program_takes_any_number_of_patches_that_are_not_square():
    p, q = 4, 8
    model = model_of(depth=1, patch_size=(p, q))
    program = export_program(model).module()
    for rows, columns in ((3, 5), (5, 3)):
        images = torch.randn(2, 3, p * rows, q * columns)
        assert_close(program(images), model(images), rtol=1e-5, atol=1e-5)
    assert _sizes(model)[0] == (48, 32)
    assert all(rows % p == columns % q == 0 for rows, columns in _sizes(model))


@pytest.mark.parametrize("kwargs", [{}, {"pos_embed": "rope"}], ids=str)
def test_an_onnx_file_runs_at_any_size(kwargs, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = model_of(depth=1, **kwargs)
    assert export(model, tmp_path / "model.onnx") < 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    check(lambda images: torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0]), model)


@pytest.mark.filterwarnings("ignore")  # those of the translation
@pytest.mark.parametrize("kwargs", [{}, {"pool": "mean"}], ids=str)
def test_openvinos_files_run_for_any_number_of_images(kwargs, tmp_path):
    openvino = pytest.importorskip("openvino")
    model = model_of(depth=1, **kwargs)
    assert export(model, tmp_path / "model.xml") < 1e-4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.bin", "model.xml"]
    compiled = openvino.Core().compile_model(tmp_path / "model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for batch in (1, 2, 5):
        images = torch.randn(batch, 3, 48, 32)
        logits = compiled({"images": images.numpy()})["logits"]
        assert_close(torch.from_numpy(logits), model(images), rtol=1e-4, atol=1e-4)


def test_a_model_that_pads_its_images_is_refused_or_fixed_to_their_size(tmp_path):
    model = model_of(depth=1, image_size=(30, 21), pad_images=True)
    for suffix in (".pt2", ".onnx", ".aoti"):
        message = (
            r"pads images of 30 x 21 pixels to whole patches of 4 x 4, .* vit\.load\(model, image_size=\(32, 24\)\)"
        )
        with pytest.raises(ValueError, match=message):
            export(model, tmp_path / f"model{suffix}")
    assert not list(tmp_path.iterdir())
    whole, images = vit.load(model, image_size=(32, 24)), torch.randn(2, 3, 30, 21)
    export(whole, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    assert_close(program(F.pad(images, (0, 3, 0, 2))), model(images), rtol=1e-5, atol=1e-5)


def test_openvino_takes_the_images_of_a_model_that_pads_them(tmp_path):
    openvino = pytest.importorskip("openvino")
    model, images = model_of(depth=1, image_size=(30, 21), pad_images=True), torch.randn(2, 3, 30, 21)
    export(model, tmp_path / "model.xml")
    compiled = openvino.Core().compile_model(tmp_path / "model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    logits = compiled({"images": images.numpy()})["logits"]
    assert_close(torch.from_numpy(logits), model(images), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")  # those of the compiler
def test_a_compiled_program_runs_at_any_size(tmp_path, monkeypatch):
    monkeypatch.setenv("AOTI_RUNTIME_CHECK_INPUTS", "1")
    model = model_of(depth=1)
    assert export(model, tmp_path / "model.aoti") < 1e-4
    with (tmp_path / "model.aoti").open("rb") as file:
        program = torch._inductor.aoti_load_package(file)
    check(program, model)
    for wrong in (torch.zeros(2, 3, 47, 30), torch.zeros(2, 1, 48, 32), torch.zeros(2, 3, 48, 32).double()):
        with pytest.raises(RuntimeError):
            program(wrong)


def test_without_openvino_or_a_compiler_the_error_says_what_to_install(tmp_path, monkeypatch):
    import torch._inductor.cpp_builder as builder
    from torch._inductor.exc import InvalidCxxCompiler

    def missing():
        raise InvalidCxxCompiler

    monkeypatch.setattr(builder, "get_cpp_compiler", missing)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ValueError, match=r"this needs openvino, .*: pip install 'vit-attention\[openvino\]'"):
        export(model_of(), tmp_path / "model.xml")
    with pytest.raises(ValueError, match=r"torch's compiler needs a C\+\+ compiler, and none is there"):
        export(model_of(), tmp_path / "model.aoti")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def program():
    """A program that is exported once, for what is done with it."""
    return export_program(model_of(depth=1))


@pytest.fixture
def model(program, monkeypatch):
    """Its model, for which ``export`` takes it."""
    monkeypatch.setattr(sys.modules["vit.weights.export"], "export_program", lambda _: program)
    return model_of(depth=1)


def test_a_program_is_saved_and_compared(model, tmp_path):
    assert export(model, tmp_path / "model.pt2") < 1e-5
    check(torch.export.load(tmp_path / "model.pt2").module(), model)


def test_a_program_with_other_logits_is_refused_and_not_left(model, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["vit.weights.export"], "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match=r"the program's logits differ from the model's by .*: nothing was written"):
        export(model, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("attention", "suffix"), [("window", "pt2"), ("linformer", "onnx")])
def test_a_mechanism_whose_program_fails_at_another_size_is_refused(attention, suffix, tmp_path):
    model = model_of(image_size=(8, 16), depth=1, attention=attention)
    with pytest.raises(ValueError, match=rf"\(attention '{attention}'\) cannot be exported for images of any size: "):
        export(model, tmp_path / f"model.{suffix}")
    assert not list(tmp_path.iterdir())


def test_other_files_and_models_in_training_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"model\.trt ends in '\.trt': programs are written to files that end in"):
        export(model_of(), tmp_path / "model.trt")
    with pytest.raises(ValueError, match=r"the model is on meta, and .*model\.aoti is for CPUs: export model\.cpu"):
        export(model_of().to("meta"), tmp_path / "model.aoti")
    with pytest.raises(ValueError, match=r"the model is in training mode: call model\.eval\(\) first"):
        export(model_of().train(), tmp_path / "model.pt2")


def test_a_program_that_computes_nan_at_one_size_is_refused(model, tmp_path, monkeypatch):
    found = iter([1e-6, float("nan"), 1e-6, 1e-6, 1e-6])
    monkeypatch.setattr(sys.modules["vit.weights.export"], "_compare", lambda *_: next(found))
    with pytest.raises(ValueError, match="nothing was written"):
        export(model, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_a_model_that_needs_a_second_file_of_onnx_is_refused_before(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["vit.weights.export"], "import_extra", lambda *_: None)
    monkeypatch.setattr(sys.modules["vit.weights.export"], "LARGEST_ONNX", 10_000)
    message = r"^the model has 0\.\d\d GB of weights, .* a single \.onnx file holds at most 2 GB: write \.pt2 or \.xml$"
    with pytest.raises(ValueError, match=message):
        export(model_of(depth=1), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_inside_autocast_nothing_is_written(tmp_path):
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match=r"autocast is on.*outside of it"):
        vit.export(vit.VisionTransformer(**SIZES).eval(), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_model_of_another_library_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a Linear is given: vit\.export takes a vit.VisionTransformer"):
        export(torch.nn.Linear(2, 2), tmp_path / "model.pt2")
