"""Maps from gradients with respect to tokens or pixels; Captum computes the pixel gradients.

Letters in the einops patterns: b batch, n tokens, d channels, c image channels, h w rows and columns of pixels.
"""

import warnings
from typing import Any

import torch
from einops import einsum, reduce
from torch import Tensor

from vit.capture.experiments.moved import moved_by_images, two_of
from vit.capture.interception.eager import as_written
from vit.capture.parts.attention_input import attention_input
from vit.capture.parts.logits import logits_of
from vit.explain.maps.noise import draw_for_each
from vit.explain.maps.rollout import check_layer
from vit.explain.maps.slope import of_gradients
from vit.explain.maps.subject import Subject
from vit.support.checks import check_non_negative, check_positive_int
from vit.support.extras import import_extra

CAPTUM = ("captum.attr", "explain")  # the module with the methods, and the extra that installs it

SAMPLES_AT_ONCE = 256  # images in one forward pass
MISSING = 0.05  # of a difference of scores: what integrated gradients may miss
FINER = 4  # times as many steps, which then must miss less than half
ROUNDINGS = 100  # of the score: a smaller difference shows nothing


@of_gradients
def gradcam(subject: Subject, *, layer: int = -1) -> Tensor:
    """Compute Grad-CAM after the last norm before an attention (Selvaraju et al. 2017): -> (B, rows, columns).

    The map is ``(sum_d w_d z_d)+`` (eq. 1 and 2): ``w_d`` is the mean over patches of dy/dz_d, and y is the score. If
    the logits read the class token, patches have no gradient after the last attention, so tokens are read before it. In
    a layer that calls no norm of tokens (B, N, D) before its attention, they are read where they enter the layer.

    Args:
        subject: Model, images and score.
        layer: Index of the layer, from 0; negative indices count from the end.

    Raises:
        ValueError: If there is no such layer, no module for each layer takes its tokens, or neither a norm nor the
            input of the layer has what enters its attention.
    """
    subject.anatomy.check_in_order()
    anatomy, name = subject.anatomy, type(subject.model).__name__
    places = anatomy.parts.before_attention
    if not places:
        raise ValueError("gradcam needs a module for each layer that takes its tokens (B, N, D): choose 'relevance'")
    check_layer(layer, len(places))
    layer %= len(places)
    place = attention_input(subject.model, two_of(subject.images), anatomy.calls[layer], places[layer])
    if place is None:
        raise ValueError(
            f"no module of {name} returns the tokens that enter the attention of layer {layer}, so gradcam cannot read "
            "them: choose 'relevance'"
        )
    subject.check_patches_kept([layer])
    kept: list[Tensor] = []
    with as_written(), torch.enable_grad(), place.seen(lambda tokens: kept.append(tokens.requires_grad_())):
        logits = logits_of(subject.model(subject.images))
        (gradient,) = torch.autograd.grad(subject.score(logits).sum(), kept[0])
    weights = reduce(gradient[:, anatomy.patches], "b n d -> b d", "mean")
    return subject.as_map(einsum(weights, kept[0].detach(), "b d, b n d -> b n")).clamp(min=0)


@of_gradients
def input_gradient(subject: Subject) -> Tensor:
    """Sum pixels times their gradient over each patch; may be negative: -> (B, rows, columns).

    To first order, this is what a patch adds to the score compared with a grey image (pixels of 0 after normalisation).
    If a model normalises each patch first (vit-pytorch), the map is zero: scaling a patch changes nothing.
    """
    return _pixel_map(subject, import_extra(*CAPTUM).InputXGradient(subject.score_of))


@of_gradients
def integrated_gradients(subject: Subject, *, steps: int = 32) -> Tensor:
    """Integrate gradients from a grey image to the image; may be negative: -> (B, rows, columns).

    The map sums to the score of the image minus the score of a grey image (pixels of 0 after normalisation). The error
    falls as the number of steps grows (Sundararajan et al. 2017, eq. 1); a warning appears if it is above 5 % of the
    largest difference.

    Args:
        subject: Model, images and score.
        steps: Number of images between grey and the image.

    Raises:
        ValueError: If the sum is another one, and more steps do not bring it nearer, or if grey has no finite score.
    """
    check_positive_int("steps", steps, "32 is usual")
    method = import_extra(*CAPTUM).IntegratedGradients(subject.score_of)
    at_once = max(SAMPLES_AT_ONCE, len(subject.images))
    found = _pixel_map(subject, method, n_steps=steps, internal_batch_size=at_once)
    if (missing := _missing(subject, found)) > MISSING:
        finer = _pixel_map(subject, method, n_steps=FINER * steps, internal_batch_size=at_once)
        if _missing(subject, finer) > missing / 2:
            raise ValueError(
                f"the gradients of {type(subject.model).__name__} between grey and an image do not add up to the "
                f"difference of their scores ({100 * missing:.0f} % of it is missing, and more steps do not help), as "
                "where numbers are rounded, a gradient is cut, or an image or each patch is normalised first: choose "
                "occlusion"
            )
        warnings.warn(
            f"with steps={steps}, the sums of these maps miss the difference of the scores of an image and of grey by "
            f"{100 * missing:.0f} %: give steps={FINER * steps}",
            stacklevel=2,
        )
    return found


@torch.no_grad()
def _missing(subject: Subject, maps: Tensor) -> float:
    """Return by which share of the largest difference between an image and grey a map does not sum to its own."""
    scores = subject.score(subject.logits)
    of_grey = subject.score(logits_of(subject.model(torch.zeros_like(subject.images))))
    if not of_grey.isfinite().all():
        raise ValueError(
            f"the logits of {type(subject.model).__name__} for a grey image are NaN or infinite, as of a model that "
            "divides by the deviation of an image, so no map can add up to a difference from them: choose occlusion"
        )
    gained = scores - of_grey
    rounding = ROUNDINGS * torch.finfo(scores.dtype).eps * scores.abs().max()
    apart = (reduce(maps, "b r s -> b", "sum") - gained).abs().max()
    return (apart / torch.maximum(gained.abs().max(), rounding)).item() if apart > rounding else 0.0


@of_gradients
def smoothgrad(subject: Subject, *, samples: int = 16, noise: float = 0.15, seed: int = 0) -> Tensor:
    """Average the gradient over noisy copies, then sum its magnitude (Smilkov et al. 2017): -> (B, rows, columns).

    Args:
        subject: Model, images and score.
        samples: Number of noisy copies of each image.
        noise: Standard deviation of the noise, as a share of the pixel range of the image.
        seed: Seed of the noise. The noise depends on the image, not on its place in the batch.
    """
    check_positive_int("samples", samples, "16 is usual")
    check_non_negative("noise", noise, "0.15 is usual")
    images, contrast = subject.images, subject.contrast
    lowest, highest = (reduce(images, "b c h w -> b 1 1 1", how) for how in ("min", "max"))
    total = torch.zeros_like(images)
    method = import_extra(*CAPTUM).Saliency(subject.score_of)
    for sample in range(samples):
        drawn = draw_for_each(images, images.shape[1:], seed, sample, draw=torch.randn)
        noisy = (images + noise * (highest - lowest) * drawn).detach().requires_grad_()
        with as_written():
            total += method.attribute(noisy, abs=False, additional_forward_args=contrast)
    _check_not_flat(subject, total)
    return subject.sum_over_patches((total / samples).abs())


def _pixel_map(subject: Subject, method: Any, **options: Any) -> Tensor:
    images = subject.images.detach().clone().requires_grad_()
    with as_written():
        pixels = method.attribute(images, additional_forward_args=subject.contrast, **options)
    _check_not_flat(subject, pixels)
    return subject.sum_over_patches(pixels.detach())


def _check_not_flat(subject: Subject, pixels: Tensor) -> None:
    """Raise a ValueError if no pixel has a gradient, although images move the logits."""
    is_flat = not pixels.any() and bool(subject.images.any())
    if is_flat and moved_by_images(subject.model, two_of(subject.images)).any():
        raise ValueError(
            f"the gradient of {type(subject.model).__name__} by the pixels is 0, although its logits depend on them, "
            "as behind rounding or clamping: choose occlusion"
        )
