"""The engines that run a trained model on a CPU: OpenVINO and torch's compiler."""

from collections.abc import Callable
from importlib.util import find_spec
from io import BytesIO
from typing import Any

import torch
from torch import Tensor, nn

from vit.inference.class_token_only import without_unread
from vit.model.vision_transformer import VisionTransformer
from vit.support.extras import import_extra

Run = Callable[[Tensor], Tensor]


def image_shape(model: VisionTransformer) -> tuple[int, int, int]:
    """Return channels, rows and columns of the images that a program of the model takes."""
    return (model.patch_embed.in_channels, *model.patch_embed.image_size)


def batch_program(module: nn.Module, image: tuple[int, int, int]) -> torch.export.ExportedProgram:
    """Return a module as a program for any number of images of one shape, (channels, rows, columns)."""
    shapes = {0: torch.export.Dim("batch", min=1)}
    return torch.export.export(module, (torch.zeros(2, *image),), dynamic_shapes=(shapes,))


def check_compiler() -> None:
    """Check that there is a C++ compiler, as torch's compiler needs one.

    Raises:
        ValueError: If there is none.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError) as error:
        raise ValueError(
            "torch's compiler needs a C++ compiler, and none is there: install g++ or clang, or set CXX to its path"
        ) from error


def compile_program(program: torch.export.ExportedProgram) -> BytesIO:
    """Compile a program for this CPU, with constant weights, into a package for ``aoti_load_package``."""
    from torch._inductor import aoti_compile_and_package

    package = BytesIO()
    # With AOTI_RUNTIME_CHECK_INPUTS=1, the check of the lower bound would refuse a batch of one image.
    configs = {"freezing": True, "aot_inductor.check_lowerbound": False}
    aoti_compile_and_package(program, package_path=package, inductor_configs=configs)
    package.seek(0)
    return package


class _InBfloat16(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.to(torch.bfloat16)

    def forward(self, images: Tensor) -> Tensor:
        return self.module(images.to(torch.bfloat16)).float()


def _compiled(model: VisionTransformer, dtype: torch.dtype, calibration: Tensor | None) -> Run:
    if dtype == torch.int8:
        raise ValueError("torch's compiler makes no int8 programs: use engine 'openvino'")
    check_compiler()
    module = without_unread(model)
    program = batch_program(_InBfloat16(module) if dtype == torch.bfloat16 else module, image_shape(model))
    return torch._inductor.aoti_load_package(compile_program(program))


def openvino_model(program: torch.export.ExportedProgram) -> Any:
    """Translate a program for OpenVINO: an ``openvino.Model`` of ``images`` -> ``logits``.

    Raises:
        ValueError: If OpenVINO is not installed.
    """
    openvino = import_extra("openvino", "openvino")
    translated = openvino.convert_model(program)
    (images,) = [node.meta["val"] for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
    translated.reshape([-1, *images.shape[1:]])
    translated.input().get_tensor().set_names({"images"})
    translated.output().get_tensor().set_names({"logits"})
    return translated


def as_openvino_model(model: VisionTransformer) -> Any:
    """Translate a Vision Transformer for OpenVINO, without the tokens that its head does not read."""
    return openvino_model(batch_program(without_unread(model), image_shape(model)))


def run_in_openvino(translated: Any, dtype: torch.dtype) -> Run:
    """Return a function that runs an ``openvino.Model`` in float32, or in bfloat16 if another type is asked for."""
    openvino = import_extra("openvino", "openvino")
    # In int8, operations that stay in floating point are computed in bfloat16, which is faster.
    precision = "f32" if dtype == torch.float32 else "bf16"
    settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = openvino.Core().compile_model(translated, "CPU", settings)
    return lambda images: torch.from_numpy(compiled(images.numpy())[0])


def _openvino(model: VisionTransformer, dtype: torch.dtype, calibration: Tensor | None) -> Run:
    translated = as_openvino_model(model)
    if calibration is not None:
        nncf = import_extra("nncf", "openvino")
        images = nncf.Dataset([image[None].numpy() for image in calibration])
        translated = nncf.quantize(
            translated,
            images,
            preset=nncf.QuantizationPreset.MIXED,
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(calibration),
        )
    return run_in_openvino(translated, dtype)


ENGINES: dict[str, Callable[[VisionTransformer, torch.dtype, Tensor | None], Run]] = {
    "openvino": _openvino,
    "compile": _compiled,
}


def engines_for(dtype: torch.dtype) -> list[str]:
    """Return the engines to try, the fastest first."""
    if dtype == torch.int8:
        return ["openvino"]
    return ["openvino", "compile"] if find_spec("openvino") else ["compile"]
