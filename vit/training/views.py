"""Test-time augmentation: what a model says of several views of an image, averaged.

Logits are averaged and not probabilities, as airbench does (Jordan 2024), so that accuracies compare with those
published.
"""

from collections.abc import Callable, Iterator
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

Views = Literal["none", "flip", "six"]

# Of each of the first so many of ``views_of``.
WEIGHTS: dict[Views, tuple[float, ...]] = {
    "none": (1.0,),
    "flip": (1 / 2, 1 / 2),
    "six": (1 / 4, 1 / 4, 1 / 8, 1 / 8, 1 / 8, 1 / 8),
}


def classify_views(classify: Callable[[Tensor], Tensor], images: Tensor, views: Views) -> tuple[Tensor, Tensor]:
    """Logits of the images as they are, and the weighted mean of those of their views: both (B, num_classes), float32.

    Args:
        classify: Maps images (B, C, H, W) to logits (B, num_classes); called for one view after the other, so that
            many need no more memory than one.
        images: Images (B, C, H, W), bytes or floats.
        views: "none" is the images alone; "flip" they and their mirror images; "six" these two for one half, and for
            the other half both of the images shifted by a pixel, one time to one side and one time to the other.
    """
    weights = WEIGHTS[views]
    logits = [classify(view).float() for _, view in zip(weights, views_of(images), strict=False)]
    return logits[0], sum(weight * one for weight, one in zip(weights, logits, strict=True))


def views_of(images: Tensor) -> Iterator[Tensor]:
    """Yield the images as they are, shifted down and right, and shifted up and left, each followed by its mirror image.

    A shift is by one pixel over the reflected border: six times (B, C, H, W), each made when it is asked for.
    """
    yield images
    yield images.flip(-1)
    h, w = images.shape[-2:]
    # Reflection is written for floats alone; bytes must stay bytes, as floats pass for values in [0, 1].
    padded = F.pad(images.float(), (1, 1, 1, 1), mode="reflect").to(images.dtype)
    for shifted in (padded[..., :h, :w], padded[..., 2:, 2:]):
        yield shifted
        yield shifted.flip(-1)
