"""Makes a trained model fast on a CPU by one of the engines, and compares the logits with the model's."""

import copy
import time
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from vit.inference.engines import ENGINES, Run, engines_for, image_shape
from vit.model.vision_transformer import VisionTransformer
from vit.support.checks import check_choice

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
    for name in [engine] if engine else engines_for(dtype):
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
        image = image_shape(model)
        if not isinstance(calibration, Tensor):
            raise ValueError(f"calibration is a {type(calibration).__name__}: give a tensor (N, {str(image)[1:]}")
        if calibration.ndim != 4 or tuple(calibration.shape[1:]) != image or not len(calibration):
            raise ValueError(
                f"calibration has shape {tuple(calibration.shape)}: give about 300 images (N, {str(image)[1:]}"
            )
        if calibration.dtype != torch.float32 or not calibration.isfinite().all():
            raise ValueError(f"calibration ({calibration.dtype}) must be finite torch.float32: normalise the images")
        mean = getattr(model, "pretrained_cfg", {}).get("mean") or (0.0,)
        if min(mean) > 0 and calibration.min() >= 0:
            raise ValueError(
                f"no number of calibration is below 0 (they go from {calibration.min():.3g} to {calibration.max():.3g}"
                "), so the images are not normalised: subtract the mean and divide by the std of model.pretrained_cfg"
            )


def _made(model: VisionTransformer, dtype: torch.dtype, calibration: Tensor | None, engine: str) -> OptimizedModel:
    """Make the program of one engine, and compare it with the model."""
    start = time.perf_counter()
    with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
        run = ENGINES[engine](copy.deepcopy(model), dtype, calibration)  # engines may share the memory of weights
        image = image_shape(model)
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
