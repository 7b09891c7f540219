"""Checks that a model computes the same for the same image, pass by pass, and that capturing changes nothing."""

import torch
from torch import Tensor, nn

from vit.capture.checks.alone import check_logits_alone
from vit.capture.checks.capturable import check_capturable, check_pixels
from vit.capture.experiments.moved import moved_by_images, two_of
from vit.capture.parts.logits import result_of
from vit.capture.tolerance import is_half, tolerance

ROUNDING = 4  # units of the type: passes of the same images round alike, but for the order of sums on a GPU
LOGIT_TOLERANCE = 1e-4  # of the largest logit; fused kernels differ from the formula by 1e-6


def check_steady(model: nn.Module, images: Tensor) -> None:
    """Raise a ValueError if the logits of an image change between passes or beside another image, or are not finite.

    It is also raised if the model writes into the images.

    The first image and another one are passed together twice, and each beside a copy of itself: batches of one size
    round alike, also in half precision.
    """
    check_pixels(images)
    check_capturable(model)
    if not len(images):
        raise ValueError("there are no images: give at least one")
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
            f"the logits of {name} are NaN or infinite: look at its weights, and at the range of its dtype"
        )
    size = _largest(one)
    moved = max(_largest(beside - of_copy[0]) for beside, of_copy in zip(one, copies, strict=True))
    if moved > tolerance(model, one, LOGIT_TOLERANCE) * size:
        raise ValueError(
            f"the logits of an image in {name} differ by {moved:.2g} beside another image and beside a copy of itself, "
            "so the images of a batch change each other: give a model that treats each image by itself"
        )


@torch.no_grad()
def check_independent(model: nn.Module, images: Tensor) -> None:
    """Raise a ValueError if the logits of an image depend on others of its batch.

    Images are passed together, and each half of them beside itself. ``check_steady`` sees the first two images alone.
    """
    count, size = len(images), -(-len(images) // 2)
    if count <= 2:
        return
    together = result_of(model(images))
    if together.isfinite().all():  # else a map names the image
        first, last = (_beside_itself(model, half, count) for half in (images[:size], images[-size:]))
        apart = torch.cat([first, last[2 * size - count :]])
        check_logits_alone(model, images, together, apart, beside="beside half of these images")


def _beside_itself(model: nn.Module, half: Tensor, count: int) -> Tensor:
    """Return the logits of images in a batch of ``count`` of them: batches of one size round alike."""
    filled = torch.cat([half.flip(0)] * 2)[:count]
    return result_of(model(filled))[: len(half)].flip(0)


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
    draws = not torch.equal(drawn, _random_state(images))
    moved, of_images = _largest(one - other), _largest(one[:1] - one[1:]) if len(one) > 1 else _largest(one)
    kind = torch.float16 if is_half(model, one) and torch.finfo(one.dtype).bits > 16 else one.dtype
    rounding = ROUNDING * torch.finfo(kind).eps * _largest(one)
    if moved > max(LOGIT_TOLERANCE * of_images, rounding) or (moved and draws):
        raise ValueError(
            f"the logits of {type(model).__name__} differ by {moved:.2g} between two passes of the same images: the "
            "model is random (dropout that ignores model.eval(), a layer left in training mode) or keeps a state "
            "between passes"
        )
    return one


def _random_state(images: Tensor) -> Tensor:
    """Return the state of the generators that a model may draw from."""
    states = [torch.get_rng_state()]
    if images.is_cuda:
        states.append(torch.cuda.get_rng_state(images.device))
    return torch.cat(states)


def check_images_unchanged(model: nn.Module, images: Tensor, given: Tensor) -> None:
    """Raise a ValueError if a model has written into the images that it was given: its next pass sees others."""
    if not torch.equal(images, given):
        raise ValueError(
            f"{type(model).__name__} writes into the images that it is given, as by images.sub_(mean), so that its "
            "next pass sees other images: let it compute images - mean"
        )


def _largest(numbers: Tensor) -> float:
    """Return the largest absolute number; numbers that are NaN or infinite, as of a changed image, do not count."""
    return numbers.abs().nan_to_num(0.0, 0.0, 0.0).max().item() if numbers.numel() else 0.0


def check_logits_unchanged(model: nn.Module, images: Tensor | None, logits: Tensor, plain: Tensor) -> None:
    """Raise a ValueError if the logits of the intercepted pass differ from those of the plain pass.

    A logit near 0 may move by more than its own size: with images, what another image moves is allowed to round, too.
    """
    if not plain.numel():
        return
    share = tolerance(model, plain, LOGIT_TOLERANCE)
    moved, allowed = (logits.detach() - plain).abs().max().item(), share * plain.abs().max().item()
    if moved > allowed and images is not None:
        allowed = max(allowed, share * moved_by_images(model, two_of(images[:1])))
    if not moved <= allowed:  # written so that NaN also raises
        raise ValueError(
            f"the logits moved by {moved:.2g} (more than {allowed:.2g}) when attention was computed explicitly: the "
            "model is random, keeps a state between passes, or its attention is not what it seems, so its maps would "
            "not be of this model"
        )
