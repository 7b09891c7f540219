"""Checks that the gradient of a model is the slope of its score.

``detach()``, ``no_grad()`` or a backward pass of its own may hide a part of the slope, or turn its sign. Nothing shows
this but the scores of changed images.

Letters in the einops patterns: k directions, s two steps, i two signs, b changed images, n classes, c image channels,
y x rows and columns of pixels.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from einops import einsum, rearrange, reduce, repeat
from torch import Tensor, nn

from vit.capture.experiments.moved import noise_like, spread_of
from vit.capture.parts.logits import logits_of, result_of
from vit.capture.tolerance import is_half
from vit.explain.maps.subject import Subject

DIRECTIONS = 3
STEPS = (2e-3, 1e-3)  # of the standard deviation of the pixels
FINE = (2e-6, 1e-6)  # the same in float64, in which they do not round: they pass few edges, as those of a ReLU
BESIDE = 0.01  # how far from the image the slope is measured, in standard deviations of the pixels
STEADY = 0.05  # two steps measure a slope if they differ by less than this share of it
WRONG = 0.25  # of the slope: a gradient that differs by more is not rounded, but wrong
EXACT = 0.01  # of the slope: how much the gradient may differ from it if nothing rounds
DISAGREE = 4  # times the difference of the two measured slopes is allowed beside it
CLEAR = 1000  # times the rounding of the score: what a step must change


@torch.no_grad()
def _copy_in(dtype: torch.dtype, model: nn.Module, image: Tensor) -> nn.Module | None:
    """Return a copy of a model in a type, or None if it cannot be copied, or does not compute in that type."""
    try:
        copied = copy.deepcopy(model).to(dtype)
        computed = result_of(copied(image.to(dtype)))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError):  # such as quantised weights, hooks, or casts of the model's own
        return None
    return copied if computed.dtype == dtype else None


@contextmanager
def _without_autocast(device: torch.device) -> Iterator[None]:
    """Within the context, nothing is cast to fewer bits, neither by the caller nor by a model itself."""
    entered, left = (patch.object(torch.autocast, name, lambda self, *_: self) for name in ("__enter__", "__exit__"))
    with torch.autocast(device.type, enabled=False), entered, left:
        yield


def of_gradients(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a method that checks the gradient of its subject first, once for all methods."""

    @wraps(method)
    def checked(subject: Subject, **options: Any) -> Tensor:
        if not subject.slope_is_checked:
            check_slope(subject)
            subject.slope_is_checked = True
        return method(subject, **options)

    return checked


def check_slope(subject: Subject) -> None:
    """Check the gradient with respect to the pixels of an image along a few random directions.

    It is the image of the batch that differs most along one direction. Where steps of two sizes disagree, as at the
    edges of a maximum or of rounding, nothing is checked. A difference that rounding or an edge may explain, or a score
    that rounds by more than the steps change it, is looked at again in a copy of the model in float64. A model that
    computes in half precision is checked as a copy in float32, without autocast; if it cannot be copied, or casts to
    half precision by itself, it is not checked.

    Raises:
        ValueError: If the score changes otherwise than its gradient says.
    """
    if not is_half(subject.model, subject.logits):
        _check_worst(subject.model, subject.images, subject.contrast)
        return
    images = subject.images.float()
    with _without_autocast(images.device):
        model = _copy_in(torch.float32, subject.model, images[:1])
        if model is not None:
            _check_worst(model, images, subject.contrast.float())


def _check_worst(model: nn.Module, images: Tensor, contrast: Tensor) -> None:
    """Check the image whose score differs most from what its gradient says, and the first."""
    _check_slope(model, images[:1], contrast[:1])
    if len(images) > 1 and (worst := _worst(model, images, contrast)):
        _check_slope(model, images[worst : worst + 1], contrast[worst : worst + 1])


def _check_slope(model: nn.Module, image: Tensor, contrast: Tensor) -> None:
    found = _compare(model, image, contrast, STEPS)
    if found is not None and (not found.is_clear or EXACT < found.off <= WRONG):
        exact = _copy_in(torch.float64, model, image)
        found = None if exact is None else _compare(exact, image.double(), contrast.double(), FINE)
    if found is not None and found.off > EXACT:
        raise ValueError(
            f"the gradient of {type(model).__name__} is not the slope of its score (along one direction of the "
            f"pixels {found.said:.3g}, where the score changes by {found.measured:.3g}), as after detach(), under "
            "no_grad() in a part of it, or with a backward pass of its own: choose a method without gradients, such as "
            "rollout, attention or occlusion"
        )


class _Slopes(NamedTuple):
    """What the gradient says of the slope along a direction, and what steps measure."""

    off: float  # by which share of the slope they differ, beyond what steps of two sizes do
    said: float
    measured: float
    is_clear: bool  # whether steps along any direction change the score by more than it rounds


def _compare(model: nn.Module, image: Tensor, contrast: Tensor, sizes: tuple[float, float]) -> _Slopes | None:
    """Return the slopes along the direction in which they differ most, or None if none can be measured."""

    def score_of(images: Tensor, weights: Tensor) -> Tensor:
        return reduce(logits_of(model(images)) * weights, "b k -> b", "sum")

    image = image + BESIDE * spread_of(image) * noise_like(image)  # pixels of exactly 0 may lie at an edge of a clamp
    generator = torch.Generator().manual_seed(1)
    directions = torch.randn(DIRECTIONS, *image.shape[1:], generator=generator).to(image)
    try:
        with torch.enable_grad():
            pixels = image.detach().clone().requires_grad_()
            (gradient,) = torch.autograd.grad(score_of(pixels, contrast).sum(), pixels, allow_unused=True)
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:  # tokens that are changed in place, or a checkpoint: methods know ways around these
        return None
    if gradient is None:  # the method says so
        return None
    said = einsum(gradient[0], directions, "c y x, k c y x -> k")
    steps = spread_of(image) * torch.tensor(sizes).to(image)
    moves = einsum(directions, torch.stack([steps, -steps]), "k c y x, i s -> i s k c y x")
    with torch.no_grad():
        moved = image + rearrange(moves, "i s k c y x -> (i s k) c y x")
        scores = score_of(moved, repeat(contrast, "1 n -> b n", b=len(moved)))
    steps, said = steps.to(scores), said.to(scores)  # a model may be on several devices
    up, down = rearrange(scores, "(i s k) -> i s k", i=2, s=len(sizes))
    measured = (up - down) / (2 * steps[:, None])
    largest = measured.abs().amax(dim=0)
    is_steady = (measured[0] - measured[1]).abs() <= STEADY * largest
    is_clear = (up - down).abs().amin(dim=0) > CLEAR * torch.finfo(scores.dtype).eps * scores.abs().max()
    differs = ((said - measured[1]).abs() - DISAGREE * (measured[0] - measured[1]).abs()).clamp(min=0)
    off = torch.where(is_steady & is_clear, differs / torch.maximum(largest, said.abs()), 0.0)
    worst = int(off.argmax())
    return _Slopes(off[worst].item(), said[worst].item(), measured[1][worst].item(), bool(is_clear.any()))


def _worst(model: nn.Module, images: Tensor, contrast: Tensor) -> int:
    """Return the image whose score a step along one direction changes most unlike its gradient says."""

    def scores_of(images: Tensor) -> Tensor:
        return reduce(logits_of(model(images)) * contrast, "b k -> b", "sum")

    spreads = rearrange(images.new_tensor([spread_of(image) for image in images]), "b -> b 1 1 1")
    direction = spreads * noise_like(images[0], seed=1)
    try:
        with torch.enable_grad():
            pixels = images.detach().clone().requires_grad_()
            (gradient,) = torch.autograd.grad(scores_of(pixels).sum(), pixels, allow_unused=True)
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:  # as in ``_compare``
        return 0
    if gradient is None:
        return 0
    said = 2 * STEPS[0] * einsum(gradient, direction, "b c y x, b c y x -> b")
    with torch.no_grad():
        measured = scores_of(images + STEPS[0] * direction) - scores_of(images - STEPS[0] * direction)
    largest = torch.maximum(measured.abs(), said.to(measured).abs())
    return int(((measured - said.to(measured)).abs() / largest.clamp(min=torch.finfo(largest.dtype).tiny)).argmax())
