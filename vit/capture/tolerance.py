"""By how much rounding may move what a model computes."""

import torch
from torch import Tensor, nn

from vit.capture.interception.intercept import HALF_PRECISION_MODELS

HALF_TOLERANCE = 0.05  # of the largest number, after rounding to half precision or to integers


def tolerance(model: nn.Module, numbers: Tensor, exact: float) -> float:
    """Return by which share of the largest number rounding may move numbers: ``exact``, or more with fewer bits.

    The largest number in the batch sets the step size of dynamically quantised layers.
    """
    is_quantised = any("quantized" in type(module).__module__ for module in model.modules()) or any(
        type(weights) is not nn.Parameter for weights in model.parameters()
    )
    return HALF_TOLERANCE if is_quantised or is_half(model, numbers) else exact


def is_half(model: nn.Module, numbers: Tensor) -> bool:
    """Return whether numbers that a model computed were rounded to half precision, themselves or on the way."""
    is_autocast = torch.is_autocast_enabled(numbers.device.type)
    return torch.finfo(numbers.dtype).bits < 32 or is_autocast or model in HALF_PRECISION_MODELS
