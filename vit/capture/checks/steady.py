"""Checks that a model computes the same for the same image, pass by pass, and that capturing changes nothing."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vit.capture.checks.alone import check_logits_alone
from vit.capture.checks.capturable import check_capturable, check_pixels
from vit.capture.experiments.halves import separating_both_ways
from vit.capture.experiments.moved import moved_by_images, two_of, units_of, usual_changes
from vit.capture.parts.logits import result_of
from vit.capture.tolerance import allowed_in_logits, are_apart, is_half

ROUNDING = 4  # units of the type: passes of the same images round alike, but for the order of sums on a GPU
FURTHER = 20  # passes of a model that draws random numbers
LOGIT_TOLERANCE = 1e-4  # of what images move; fused kernels differ from the formula by 1e-6
EXPLICIT = 4  # times the rounding of a logit


def check_steady(model: nn.Module, images: Tensor) -> None:
    """Raise a ValueError if the logits of an image change between passes or beside another image, or are not finite.

    It is also raised if the model writes into the images.

    The first image and another one are passed together twice, and each beside a copy of itself: batches of one size
    round alike, also in half precision.
    """
    check_pixels(images)
    check_capturable(model)
    pair = two_of(images)
    one = repeated(model, pair)
    with torch.no_grad():
        copies = [result_of(model(torch.cat([image, image]))) for image in pair.split(1)]
    name = type(model).__name__
    if len(one) != len(pair):
        raise ValueError(f"{name} returned {len(one)} rows of logits for {len(pair)} images: return one for each image")
    if not one.numel():
        raise ValueError(f"{name} returned no logits, {tuple(one.shape)}: give a model with a head, or its features")
    if not one[0].isfinite().all():
        raise ValueError(
            f"the logits of {name} are NaN or infinite: mask classes by a finite number such as -1e4, or look at its "
            "weights and at the range of its dtype"
        )
    moved = torch.stack([_sizes(beside - of_copy[0]) for beside, of_copy in zip(one, copies, strict=True)])
    if (moved > allowed_in_logits(model, one, usual_changes(one), LOGIT_TOLERANCE)).any():
        raise ValueError(
            f"the logits of an image in {name} differ by {moved.max().item():.2g} beside another image and beside a "
            "copy of itself, so the images of a batch change each other: give a model that treats each image by itself"
        )


@torch.no_grad()
def check_independent(model: nn.Module, images: Tensor) -> None:
    """Raise a ValueError if the logits of an image depend on others of its batch.

    Some images are exchanged for the others, in as many ways as it takes to keep each of any two without the other, and
    the others must keep their logits. ``check_steady`` sees the first two images alone.
    """
    if len(images) <= 2:
        return
    together = result_of(model(images))
    if not together.isfinite().all():  # a map names the image
        return
    usual = torch.maximum(usual_changes(together), moved_by_images(model, two_of(images[:1])))  # frames are much alike
    for kept in separating_both_ways(len(images)):
        source, places = torch.arange(len(images)), kept.nonzero()[:, 0]
        source[~kept] = places.repeat(len(images))[: int((~kept).sum())]
        beside = result_of(model(images[source.to(images.device)]))
        check_logits_alone(model, len(images), usual, together[kept], beside[kept], beside="beside other images")


@torch.no_grad()
def repeated(model: nn.Module, images: Tensor) -> Tensor:
    """Return the logits of images (B, C, H, W), on which two passes must agree.

    They agree if they differ by less than 1e-4 of what two images differ by, which is the scale of a map, or by
    rounding: kernels of a GPU may add up in another order each time.

    Raises:
        ValueError: If they do not agree, or the model draws random numbers that change them.
    """
    drawn, given = _random_state(images), images.clone()
    one = result_of(model(images))
    check_images_unchanged(model, images, given)
    other = result_of(model(images))
    draws = drawn != _random_state(images)
    for _ in range(FURTHER if draws else 0):  # a layer that is dropped in one pass of a hundred shows seldom
        other = other if not torch.equal(one, other) else result_of(model(images))
    moved, sizes = _sizes(one - other), _sizes(one)
    usual = usual_changes(one.nan_to_num()) if len(one) > 1 else sizes.amax(dim=0)
    kind = torch.float16 if is_half(model, one) and torch.finfo(one.dtype).bits > 16 else one.dtype
    moving = sizes[:, usual > 0]
    rounding = ROUNDING * torch.finfo(kind).eps * sizes.clamp(min=moving.max() if moving.numel() else 0.0)
    if (moved > torch.maximum(LOGIT_TOLERANCE * usual, rounding)).any() or (moved.any() and draws):
        raise ValueError(
            f"the logits of {type(model).__name__} differ by {moved.max().item():.2g} between two passes of the same "
            "images: the model is random (dropout that ignores model.eval(), a layer left in training mode) or keeps a "
            "state between passes"
        )
    return one


def _random_state(images: Tensor) -> tuple[Any, ...]:
    """Return the state of the generators that a model may draw from: those of torch, Python and NumPy."""
    of_torch = [torch.get_rng_state(), *([torch.cuda.get_rng_state(images.device)] if images.is_cuda else [])]
    _, numbers, place, *_ = np.random.get_state()
    return *(state.numpy().tobytes() for state in of_torch), random.getstate(), numbers.tobytes(), place


def check_images_unchanged(model: nn.Module, images: Tensor, given: Tensor) -> None:
    """Raise a ValueError if a model has written into the images that it was given: its next pass sees others."""
    if not torch.equal(images, given):
        raise ValueError(
            f"{type(model).__name__} writes into the images that it is given, as by images.sub_(mean), so that its "
            "next pass sees other images: let it compute images - mean"
        )


def _sizes(numbers: Tensor) -> Tensor:
    """Return the absolute numbers; those that are NaN or infinite, as of a changed image, do not count."""
    return numbers.abs().nan_to_num(0.0, 0.0, 0.0)


def check_logits_unchanged(model: nn.Module, usual: Tensor | None, logits: Tensor, plain: Tensor) -> None:
    """Raise a ValueError if the logits of the intercepted pass differ from those of the plain pass.

    They are compared by how much images move each logit, as ``moved_by_images`` returns it, or else by their size.
    """
    if not plain.numel():
        return
    moved, sizes = (logits.detach() - plain).abs(), plain.abs().amax(dim=0)
    usual = sizes.clamp(min=sizes.median()) if usual is None else usual
    # Fused kernels differ from the formula by more than kernels for batches of other sizes do from each other.
    allowed = torch.maximum(allowed_in_logits(model, plain, usual, LOGIT_TOLERANCE), EXPLICIT * units_of(sizes, usual))
    if (apart := are_apart(logits.detach(), plain, allowed)).any():
        worst = torch.where(apart, (moved - allowed).nan_to_num(nan=torch.inf), -torch.inf).argmax()
        raise ValueError(
            f"the logits moved by {moved.flatten()[worst].item():.2g} (more than "
            f"{allowed.expand_as(moved).flatten()[worst].item():.2g}) when attention was computed explicitly: the "
            "model is random, keeps a state between passes, or its attention is not what it seems, so its maps would "
            "not be of this model"
        )
