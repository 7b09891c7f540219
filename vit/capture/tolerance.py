"""By how much rounding may move what a model computes."""

import torch
from torch import Tensor, nn

from vit.capture.experiments.moved import units_of
from vit.capture.interception.intercept import HALF_PRECISION_MODELS

QUANTISED_LAYERS = tuple(f"torch.{place}quantized" for place in ("ao.nn.", "ao.nn.intrinsic.", "nn."))
HALF_TOLERANCE = 0.05  # of the largest number, after rounding to half precision or to integers


def tolerance(model: nn.Module, numbers: Tensor, exact: float) -> float:
    """Return by which share of the largest number rounding may move numbers: ``exact``, or more with fewer bits.

    The largest number in the batch sets the step size of dynamically quantised layers.
    """
    return HALF_TOLERANCE if is_quantised(model) or is_half(model, numbers) else exact


def is_quantised(model: nn.Module) -> bool:
    """Return whether a model has quantised layers of torch.ao, or weights of a quantised type, as those of torchao."""
    return any(type(module).__module__.startswith(QUANTISED_LAYERS) for module in model.modules()) or any(
        not issubclass(type(weights), nn.Parameter) or not (weights.is_floating_point() or weights.is_complex())
        for weights in model.parameters()
    )


def allowed_in_logits(model: nn.Module, logits: Tensor, usual: Tensor, share: float) -> Tensor:
    """Return how far rounding may move each logit: (B, classes) or (classes,), (classes,) -> (classes,).

    This is a share of what images move it, and a few units of its own size. After rounding to half precision or to
    integers, it is a share of the largest logit that images move.

    Args:
        model: The model.
        logits: The logits.
        usual: How much images move each, as ``usual_changes`` returns it.
        share: The share, in full precision.
    """
    sizes = logits.detach().abs()
    sizes = sizes.amax(dim=0) if sizes.ndim > usual.ndim else sizes
    share = tolerance(model, logits, share)
    if share == HALF_TOLERANCE:
        moving = sizes[usual > 0] if usual.any() else sizes
        return share * torch.maximum(usual, sizes.clamp(min=moving.max()))
    return torch.maximum(share * usual, units_of(sizes, usual))


def are_apart(logits: Tensor, others: Tensor, allowed: Tensor) -> Tensor:
    """Return which logits differ by more than is allowed. NaN does; classes that are masked by infinity do not.

    >>> one = torch.tensor([1.0, -torch.inf, torch.nan])
    >>> are_apart(one, one, torch.tensor([0.1, torch.nan, 0.1]))
    tensor([False, False,  True])
    """
    return ~((logits == others) | ((logits - others).abs() <= allowed))


def is_half(model: nn.Module, numbers: Tensor) -> bool:
    """Return whether numbers that a model computed were rounded to half precision, themselves or on the way."""
    is_autocast = torch.is_autocast_enabled(numbers.device.type)
    return torch.finfo(numbers.dtype).bits < 32 or is_autocast or model in HALF_PRECISION_MODELS
