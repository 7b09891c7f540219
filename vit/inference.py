"""Makes a trained model fast on a CPU, by OpenVINO or torch's compiler, and compares the logits with the model's."""

import copy
import time
from collections.abc import Callable
from importlib.util import find_spec
from io import BytesIO
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from vit.attention import MultiHeadAttention
from vit.model.encoder_block import EncoderBlock
from vit.model.vision_transformer import VisionTransformer
from vit.support.checks import check_choice
from vit.support.extras import import_extra
from vit.support.hooks import is_hooked

Run = Callable[[Tensor], Tensor]
# Largest difference of a logit, as a share of the largest logit.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.int8: 0.25}
LEAST_AGREEMENT = 0.95  # share of the calibration images whose predicted class int8 must keep
CALIBRATION_BATCH = 50


class OptimizedModel(nn.Module):
    """A program that computes the logits of a model: images (B, C, H, W) -> (B, num_classes), made by ``optimize``.

    It has no parameters, computes no gradients, and may be called from several threads.

    Attributes:
        engine: The engine that runs it: "openvino" or "compile".
        dtype: The type in which it computes. Images and logits are float32.
        image: Channels, rows and columns of the images.
        difference: Largest difference of a logit from the model's, as a share of the model's largest logit.
        agreement: Share of calibration images with the same class from model and program; None without such images.
        seconds: Time that it took to make the program.
    """

    def __init__(
        self, run: Run, engine: str, dtype: torch.dtype, image: tuple[int, int, int], num_outputs: int
    ) -> None:
        super().__init__()
        self._run = run
        self._lock = Lock()  # an engine has one set of buffers
        self.engine = engine
        self.dtype = dtype
        self.image = image
        self.num_outputs = num_outputs
        self.difference = 0.0
        self.agreement: float | None = None
        self.seconds = 0.0
        super().train(False)

    def forward(self, images: Tensor) -> Tensor:
        """Classify normalised images: float32 (B, C, H, W) -> (B, num_classes).

        Raises:
            ValueError: If the images have another shape, type or device than the program takes.
        """
        if not isinstance(images, Tensor):
            raise ValueError(f"a {type(images).__name__} is given: give a tensor of normalised images (B, C, H, W)")
        if images.ndim != 4 or tuple(images.shape[1:]) != self.image:
            raise ValueError(
                f"images have shape {tuple(images.shape)}, but this program takes (batch, {str(self.image)[1:]}: "
                "resize them, or optimize a model that vit.load(..., image_size=...) made for them"
            )
        if images.dtype != torch.float32 or images.device.type != "cpu":
            raise ValueError(
                f"images are {images.dtype} on {images.device}, but this program takes torch.float32 on cpu: convert "
                "them by images.float().cpu(), and normalise"
            )
        if not len(images):
            return images.new_zeros(0, self.num_outputs)
        with self._lock:
            return self._run(images.detach().contiguous())

    if TYPE_CHECKING:  # the calls of nn.Module return Any
        __call__: Callable[..., Tensor]

    def train(self, mode: bool = True) -> "OptimizedModel":
        """Refuse training, as there are no weights to train."""
        if mode:
            raise ValueError("an optimised model cannot be trained: train the model, then call vit.optimize again")
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "OptimizedModel":
        return self  # nothing in it changes

    def extra_repr(self) -> str:
        """Show how the program was made when it is printed."""
        dtype = str(self.dtype).removeprefix("torch.")
        agreement = "" if self.agreement is None else f", agreement={self.agreement:.2%}"
        return (
            f"engine={self.engine}, dtype={dtype}, image={self.image}, difference={self.difference:.1g}{agreement}, "
            f"seconds={self.seconds:.1f}"
        )


def optimize(
    model: VisionTransformer,
    dtype: torch.dtype = torch.float32,
    calibration: Tensor | None = None,
    engine: Literal["openvino", "compile"] | None = None,
) -> OptimizedModel:
    """Make a trained model fast on this CPU, for any number of images of its ``image_size``.

    The program holds a copy of the weights: call this again after training them further. Its logits are compared with
    the model's on batches of several sizes. The largest allowed difference, as a share of the largest logit, is 1e-4 in
    float32, 0.05 in bfloat16 and 0.25 in int8. In int8, at least 95 % of the calibration images must keep their class.

    >>> import vit  # doctest: +SKIP
    >>> model = vit.load("cifar10")  # doctest: +SKIP
    >>> fast = vit.optimize(model, torch.bfloat16)  # doctest: +SKIP
    >>> fast(torch.randn(128, 3, 32, 32)).shape  # doctest: +SKIP
    torch.Size([128, 10])

    Args:
        model: The model, on the CPU, in float32 and in evaluation mode.
        dtype: ``torch.float32``, ``torch.bfloat16`` (faster if the CPU has instructions for it), or ``torch.int8``
            for the products of weights and bfloat16 for the rest (needs OpenVINO and NNCF).
        calibration: For int8, a few hundred normalised images (N, C, H, W) from the training set. They show the range
            of the activations.
        engine: "openvino" (``pip install 'vit-attention[openvino]'``), or "compile" (torch's compiler, which needs a
            C++ compiler and half a minute). None tries OpenVINO first: benchmarks/results/inference.md compares them.

    Raises:
        ValueError: If the model cannot be optimised, no engine is installed, or the logits differ by more than allowed.
    """
    _check(model, dtype, calibration, engine)
    reasons = []
    for name in [engine] if engine else _engines(dtype):
        try:
            return _made(model, dtype, calibration, name)
        except Exception as error:  # engines raise many kinds
            reasons.append((f"{name}: {' '.join(str(error).split())[:300]}", error))
    said = "; ".join(text for text, _ in reasons)
    attention = model.config["attention"]
    raise ValueError(f"the model (attention {attention!r}) cannot be optimised: {said}") from reasons[-1][1]


def _check(model: Any, dtype: torch.dtype, calibration: Tensor | None, engine: str | None) -> None:
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"a {type(model).__name__} is given: vit.optimize takes a vit.VisionTransformer")
    if dtype not in TOLERANCES:
        raise ValueError(f"dtype {dtype} must be torch.float32, torch.bfloat16 or torch.int8")
    if engine is not None:
        check_choice("engine", engine, ENGINES)
    if model.training:
        raise ValueError("the model is in training mode: call model.eval() first, or the program would drop patches")
    kinds = {(parameter.dtype, parameter.device.type) for parameter in model.parameters()}
    if kinds != {(torch.float32, "cpu")}:
        found = " and ".join(sorted(f"{kind} on {device}" for kind, device in kinds))
        raise ValueError(f"the weights are {found}: optimize a model of torch.float32 on cpu, by model.float().cpu()")
    if (dtype == torch.int8) == (calibration is None):
        raise ValueError(
            "int8 needs calibration: a tensor of about 300 normalised training images"
            if calibration is None
            else f"calibration is for torch.int8, and dtype is {dtype}: leave it out"
        )
    if calibration is not None:
        image = _image(model)
        if not isinstance(calibration, Tensor):
            raise ValueError(f"calibration is a {type(calibration).__name__}: give a tensor (N, {str(image)[1:]}")
        if calibration.ndim != 4 or tuple(calibration.shape[1:]) != image or not len(calibration):
            raise ValueError(
                f"calibration has shape {tuple(calibration.shape)}: give about 300 images (N, {str(image)[1:]}"
            )
        if calibration.dtype != torch.float32 or not calibration.isfinite().all():
            raise ValueError(f"calibration ({calibration.dtype}) must be finite torch.float32: normalise the images")


def _engines(dtype: torch.dtype) -> list[str]:
    """Return the engines to try, the fastest first."""
    if dtype == torch.int8:
        return ["openvino"]
    return ["openvino", "compile"] if find_spec("openvino") else ["compile"]


def _image(model: VisionTransformer) -> tuple[int, int, int]:
    return (model.patch_embed.in_channels, *model.patch_embed.image_size)


def _made(model: VisionTransformer, dtype: torch.dtype, calibration: Tensor | None, engine: str) -> OptimizedModel:
    """Make the program of one engine, and compare it with the model."""
    start = time.perf_counter()
    with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
        run = ENGINES[engine](copy.deepcopy(model), dtype, calibration)  # engines may share the memory of weights
        image = _image(model)
        made = OptimizedModel(run, engine, dtype, image, model.num_classes or model.num_features)
        if calibration is None:
            images = torch.randn(8, *image, generator=torch.Generator().manual_seed(0))
            batches = images.split([5, 2, 1])
        else:
            batches = calibration.split(CALIBRATION_BATCH)
        expected, logits = (torch.cat([each(batch) for batch in batches]) for each in (model, made))
    made.difference = ((logits - expected).abs().max() / expected.abs().max()).nan_to_num(torch.inf).item()
    if torch.equal(logits, expected):  # if all logits are zero, the share is 0 / 0
        made.difference = 0.0
    if not made.difference <= TOLERANCES[dtype]:
        raise ValueError(
            f"the logits in {dtype} differ from the model's by {made.difference:.2g} of the largest one, and "
            f"{TOLERANCES[dtype]} is allowed: choose another dtype"
        )
    if calibration is not None and model.num_classes > 1:
        made.agreement = (logits.argmax(1) == expected.argmax(1)).float().mean().item()
        if made.agreement < LEAST_AGREEMENT:
            raise ValueError(
                f"in {dtype} only {made.agreement:.1%} of the calibration images keep their predicted class, and "
                f"{LEAST_AGREEMENT:.0%} are asked for: give more images, or choose torch.bfloat16"
            )
    made.seconds = time.perf_counter() - start
    return made


class ClassTokenOnly(nn.Module):
    """A model whose last block computes only the class token, as the head reads nothing else. The logits are the same.

    Args:
        model: A model for which ``reads_class_token_only`` is true.
    """

    def __init__(self, model: VisionTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Classify images: (B, C, H, W) -> (B, num_classes)."""
        *blocks, last = self.model.blocks
        tokens = self.model.embed(images)
        for block in blocks:
            tokens = block(tokens, self.model.patch_embed.grid_of(*images.shape[-2:]))
        normed = last.norm1(tokens)
        token = tokens[:, :1] + last.ls1(last.attn(normed[:, :1], context=normed))
        token = token + last.ls2(last.mlp(last.norm2(token)))
        return self.model.forward_head(self.model.norm(token))


def reads_class_token_only(model: VisionTransformer) -> bool:
    """Return whether only the head reads the output of the last block, and only its class token."""
    last = model.blocks[-1]
    return (
        model.pool == "cls"
        and "rope" not in model.config["pos_embed"]
        and type(model) is VisionTransformer  # a subclass may override methods
        and type(last) is EncoderBlock
        and type(last.attn) is MultiHeadAttention
        and last.attn.mechanism.independent_queries
        and not any(is_hooked(module) for module in model.modules())
        and not {"forward_features", "forward_head"} & vars(model).keys()
    )


def batch_program(model: VisionTransformer, module: nn.Module | None = None) -> torch.export.ExportedProgram:
    """Return the model, or a module around it, as a program for any number of images of its ``image_size``."""
    images = torch.zeros(2, *_image(model))
    shapes = {0: torch.export.Dim("batch", min=1)}
    return torch.export.export(module or without_unread(model), (images,), dynamic_shapes=(shapes,))


def without_unread(model: VisionTransformer) -> nn.Module:
    """Return a module without the tokens of the last block that the head does not read, or the model itself."""
    return ClassTokenOnly(model) if reads_class_token_only(model) else model


class _InBfloat16(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.to(torch.bfloat16)

    def forward(self, images: Tensor) -> Tensor:
        return self.module(images.to(torch.bfloat16)).float()


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


def _compiled(model: VisionTransformer, dtype: torch.dtype, calibration: Tensor | None) -> Run:
    if dtype == torch.int8:
        raise ValueError("torch's compiler makes no int8 programs: use engine 'openvino'")
    check_compiler()
    module = without_unread(model)
    program = batch_program(model, _InBfloat16(module) if dtype == torch.bfloat16 else module)
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


def _openvino(model: VisionTransformer, dtype: torch.dtype, calibration: Tensor | None) -> Run:
    openvino = import_extra("openvino", "openvino")
    translated = openvino_model(batch_program(model))
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
    # In int8, operations that stay in floating point are computed in bfloat16, which is faster.
    precision = "f32" if dtype == torch.float32 else "bf16"
    settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = openvino.Core().compile_model(translated, "CPU", settings)
    return lambda images: torch.from_numpy(compiled(images.numpy())[0])


ENGINES: dict[str, Callable[[VisionTransformer, torch.dtype, Tensor | None], Run]] = {
    "openvino": _openvino,
    "compile": _compiled,
}
