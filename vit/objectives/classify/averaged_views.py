"""Test-time augmentation: logits averaged over several views of an image.

Logits are averaged, not probabilities, as in airbench (Jordan 2024), so that accuracies compare with published ones.
"""

from collections.abc import Callable, Iterator
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

Views = Literal["none", "flip", "six"]

# The weights of the first views that ``views_of`` yields.
WEIGHTS: dict[Views, tuple[float, ...]] = {
    "none": (1.0,),
    "flip": (1 / 2, 1 / 2),
    "six": (1 / 4, 1 / 4, 1 / 8, 1 / 8, 1 / 8, 1 / 8),
}


def classify_views(classify: Callable[[Tensor], Tensor], images: Tensor, views: Views) -> tuple[Tensor, Tensor]:
    """Return the logits of the unchanged images and the weighted mean over views: (B, num_classes) each, float32.

    Args:
        classify: Maps images (B, C, H, W) to logits (B, num_classes). It is called for each view in turn, which takes
            the memory of one view.
        images: Images (B, C, H, W), bytes or floats.
        views: "none" is the images alone; "flip" is the images and their mirror images. "six" adds both for the images
            shifted by one pixel down and right, and up and left; the two that are not shifted have half of the weight.
    """
    weights = WEIGHTS[views]
    logits = [classify(view).float() for _, view in zip(weights, views_of(images), strict=False)]
    return logits[0], sum(weight * one for weight, one in zip(weights, logits, strict=True))


def views_of(images: Tensor) -> Iterator[Tensor]:
    """Yield the images unchanged, shifted down and right, and shifted up and left, each followed by its mirror image.

    Shifts are by one pixel, with reflected borders: six tensors (B, C, H, W), each computed when it is needed.
    """
    yield images
    yield images.flip(-1)
    h, w = images.shape[-2:]
    # torch reflects floats only; bytes must stay bytes, because the classifier reads floats as values in [0, 1].
    padded = F.pad(images.float(), (1, 1, 1, 1), mode="reflect").to(images.dtype)
    for shifted in (padded[..., :h, :w], padded[..., 2:, 2:]):
        yield shifted
        yield shifted.flip(-1)
