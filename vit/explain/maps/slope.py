"""Checks that the gradient of a model is the slope of its score.

``detach()``, ``no_grad()`` or a backward pass of its own may hide a part of the slope, or turn its sign. Nothing shows
this but the scores of changed images.

Letters in the einops patterns: k directions, s two steps, i two signs, b changed images, n classes.
"""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from einops import einsum, rearrange, reduce, repeat
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vit.capture.experiments.moved import noise_like, spread_of
from vit.capture.interception.eager import as_written
from vit.capture.parts.logits import logits_of
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


Run = Callable[[Tensor], Tensor]  # passes images (B, C, H, W), and returns logits (B, classes)


def _logits(model: nn.Module, images: Tensor) -> Tensor:
    return logits_of(model(images))


class _CastTo(TorchDispatchMode):
    """Within the context, what a model casts to a floating type, or creates in one, has this type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation."""
        kwargs = kwargs or {}
        dtype = kwargs.get("dtype")
        is_float = dtype is not None and dtype.is_floating_point
        return func(*args, **(kwargs | {"dtype": self.dtype} if is_float else kwargs))


@contextmanager
def _all_in(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Within the context, nothing is cast to fewer bits, neither by the caller nor by a model itself."""
    entered, left = (patch.object(torch.autocast, name, lambda self, *_: self) for name in ("__enter__", "__exit__"))
    with torch.autocast(device.type, enabled=False), entered, left, _CastTo(dtype):
        yield


@torch.no_grad()
def _copy_in(dtype: torch.dtype, model: nn.Module, image: Tensor) -> Run | None:
    """Return a copy of a model that computes in a type, or None if it cannot be copied, or does not do so."""

    def run(images: Tensor) -> Tensor:
        with _all_in(dtype, images.device):
            return _logits(copied, images)

    try:
        copied = copy.deepcopy(model).to(dtype)
        computed = run(image.to(dtype))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError):  # such as quantised weights, or a graph that a module keeps
        return None
    return run if computed.dtype == dtype else None


def of_gradients(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a method that checks the gradient of its subject first, once for all methods, and warns if it cannot."""

    @wraps(method)
    def checked(subject: Subject, **options: Any) -> Tensor:
        if subject.slope_is_measured is None:
            subject.slope_is_measured = check_slope(subject)
        found = method(subject, **options)  # which may refuse a model without gradients
        if not subject.slope_is_measured:
            warnings.warn(
                f"whether the gradient of {type(subject.model).__name__} is the slope of its score could not be "
                "measured, because its score rounds or moves in steps, or tokens that a gradient needs are changed in "
                "place: compare its maps with those of 'occlusion'",
                stacklevel=2,
            )
        return found

    return checked


def check_slope(subject: Subject) -> bool:
    """Check the gradient with respect to the pixels of an image along a few random directions.

    It is the first image of the batch, and the one that differs most along one direction. If steps of two sizes
    disagree, the score rounds by more than they change it, or rounding or an edge may explain a difference, a copy of
    the model in float64 is measured, without casts of its own. A model in half precision is measured as such a copy in
    float32.

    Returns:
        Whether the slope could be measured: not if there is no copy or no gradient, or its score moves in steps.

    Raises:
        ValueError: If the score changes otherwise than its gradient says.
    """
    model, images = subject.model, subject.images
    run: Run | None = partial(_logits, model)
    if is_half(model, subject.logits):
        images = images.float()
        run = _copy_in(torch.float32, model, images[:1])
    if run is None:
        return False
    contrast = subject.contrast.to(images.dtype)
    are_measured = []
    for number in sorted({0, _worst(run, images, contrast)}):
        image, of_image = images[number : number + 1], contrast[number : number + 1]
        found = _compare(run, image, of_image, STEPS)
        if found is None:
            are_measured.append(_check_from_tokens(subject, number))
        else:
            are_measured.append(_check_found(model, image, of_image, found))
    return all(are_measured)


def _check_found(model: nn.Module, image: Tensor, contrast: Tensor, found: "_Slopes") -> bool:
    """Check what was found for an image, or what a copy of the model in float64 shows. Return whether it shows it."""
    if found.is_measured and not EXACT < found.off <= WRONG:
        shown = found
    else:
        exact = _copy_in(torch.float64, model, image)
        shown = exact and _compare(exact, image.double(), contrast.double(), FINE)
    if shown is None:
        return not found.said
    if shown.off > EXACT:
        raise _not_the_slope(model, shown)
    return shown.is_measured or not shown.is_visible


def _check_from_tokens(subject: Subject, number: int) -> bool:
    """Check the gradient with respect to the tokens that enter the first layer, for a model that cuts that of pixels.

    Rounded pixels have a gradient of 0. If no attention is found, only methods of pixels are left, and these say so.
    """
    model, one = subject.model, slice(number, number + 1)
    image, contrast = subject.images[one], subject.contrast[one]
    try:
        places = subject.anatomy.parts.layers
    except ValueError:
        return True
    seen: list[Tensor] = []

    def run(tokens: Tensor) -> Tensor:
        images = repeat(image, "1 c y x -> b c y x", b=len(tokens))
        with places[0].changed(lambda _: tokens.clone()):  # to which a layer may add in place
            return _logits(model, images)

    if places:
        with torch.no_grad(), places[0].seen(lambda tokens: seen.append(tokens.clone())):
            model(image)
    found = _compare(run, seen[0], contrast, STEPS) if len(seen) == 1 else None
    rounds = found is None or torch.finfo(subject.logits.dtype).bits < 64
    if found is None or (rounds and EXACT < found.off <= WRONG):
        return False
    if found.off > EXACT:
        raise _not_the_slope(model, found)
    return found.is_measured or not found.is_visible


def _not_the_slope(model: nn.Module, found: "_Slopes") -> ValueError:
    return ValueError(
        f"the gradient of {type(model).__name__} is not the slope of its score (along one direction {found.said:.3g}, "
        f"where the score changes by {found.measured:.3g}), as after detach(), under no_grad() in a part of it, or "
        "with a backward pass of its own: choose a method without gradients, such as rollout, attention or occlusion"
    )


class _Slopes(NamedTuple):
    """What the gradient says of the slope along a direction, and what steps measure."""

    off: float  # by which share of the slope they differ, beyond what steps of two sizes do
    said: float
    measured: float
    is_measured: bool  # whether steps along any direction agree, and change the score by more than it rounds
    is_visible: bool  # whether the score would change so, if the gradient is its slope


def _compare(run: Run, image: Tensor, contrast: Tensor, sizes: tuple[float, float]) -> _Slopes | None:
    """Return the slopes along the direction in which they differ most, or None if a score that moves has no gradient.

    In place of an image, these may be the tokens of one.
    """

    def score_of(images: Tensor, weights: Tensor) -> Tensor:
        return reduce(run(images) * weights, "b k -> b", "sum")

    image = image + BESIDE * spread_of(image) * noise_like(image)  # pixels of exactly 0 may lie at an edge of a clamp
    generator = torch.Generator().manual_seed(1)
    directions = torch.randn(DIRECTIONS, *image.shape[1:], generator=generator).to(image)
    try:
        with as_written(), torch.enable_grad():
            pixels = image.detach().clone().requires_grad_()
            (gradient,) = torch.autograd.grad(score_of(pixels, contrast).sum(), pixels, allow_unused=True)
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:  # as of tokens that are changed in place, or if nothing has a gradient
        return None
    if gradient is None:
        return None
    if not gradient.any():
        with torch.no_grad():
            one, other = score_of(torch.cat([image, noise_like(image, seed=1)]), repeat(contrast, "1 n -> b n", b=2))
        if one != other:
            return None
    said = reduce(gradient * directions, "k ... -> k", "sum")
    steps = spread_of(image) * torch.tensor(sizes).to(image)
    moves = einsum(directions, torch.stack([steps, -steps]), "k ..., i s -> i s k ...")
    with torch.no_grad():
        moved = image + rearrange(moves, "i s k ... -> (i s k) ...")
        scores = score_of(moved, repeat(contrast, "1 n -> b n", b=len(moved)))
    steps, said = steps.to(scores), said.to(scores)  # a model may be on several devices
    up, down = rearrange(scores, "(i s k) -> i s k", i=2, s=len(sizes))
    measured = (up - down) / (2 * steps[:, None])
    largest = measured.abs().amax(dim=0)
    is_steady = (measured[0] - measured[1]).abs() <= STEADY * largest
    clear = CLEAR * torch.finfo(scores.dtype).eps * scores.abs().max()
    is_clear = (up - down).abs().amin(dim=0) > clear
    differs = ((said - measured[1]).abs() - DISAGREE * (measured[0] - measured[1]).abs()).clamp(min=0)
    off = torch.where(is_steady & is_clear, differs / torch.maximum(largest, said.abs()), 0.0)
    worst = int(off.argmax())
    is_visible = 2 * steps.min() * said.abs().max() > clear
    return _Slopes(
        off[worst].item(),
        said[worst].item(),
        measured[1][worst].item(),
        is_measured=bool((is_steady & is_clear).any()),
        is_visible=bool(is_visible),
    )


def _worst(run: Run, images: Tensor, contrast: Tensor) -> int:
    """Return the image whose score a step along one direction changes most unlike its gradient says."""
    if len(images) == 1:
        return 0

    def scores_of(images: Tensor) -> Tensor:
        return reduce(run(images) * contrast, "b k -> b", "sum")

    spreads = rearrange(images.new_tensor([spread_of(image) for image in images]), "b -> b 1 1 1")
    direction = spreads * noise_like(images[0], seed=1)
    try:
        with as_written(), torch.enable_grad():
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
