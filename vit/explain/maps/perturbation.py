"""Maps made by removing patches, one at a time.

Letters in the einops patterns: b batch, k patches removed in one pass, n tokens, r s grid rows and columns, c image
channels or classes, h w rows and columns of pixels.
"""

import warnings

import torch
from einops import rearrange, reduce, repeat
from torch import Tensor

from vit.explain.maps.fewer_tokens import can_drop, drop_error, logits_with_tokens
from vit.explain.maps.gradients import CAPTUM, SAMPLES_AT_ONCE
from vit.explain.maps.subject import Subject
from vit.support.extras import import_extra

ROUNDED = 0.05  # of the largest value of a map: how far its scores may round


def occlusion(subject: Subject) -> Tensor:
    """Measure how much the score falls when a patch is painted grey; may be negative: -> (B, rows, columns).

    Grey is 0 after normalisation, the mean colour of the training images (Zeiler and Fergus 2014). Each patch costs one
    pass of the whole model. A warning says if the score rounds by more than 5 % of what its largest patch changes.
    """
    method = import_extra(*CAPTUM).FeatureAblation(subject.score_of)
    pixels = method.attribute(
        subject.images,
        # Captum counts from the smallest number: pixels that the model never sees are one more cell.
        feature_mask=subject.cell_of_pixel[None, None],
        additional_forward_args=subject.contrast,
        perturbations_per_eval=max(1, SAMPLES_AT_ONCE // len(subject.images)),
    )
    # Captum gives each pixel the value of its patch.
    losses = subject.sum_over_patches(pixels) / subject.sum_over_patches(torch.ones_like(pixels))
    _warn_of_rounding(subject, losses)
    return losses


def token_drop(subject: Subject) -> Tensor:
    """Measure how much the score falls when the token of a patch is dropped; may be negative: -> (B, rows, columns).

    Unlike occlusion, this needs no fill colour: the model runs with one token fewer. It warns as ``occlusion`` does.
    """
    tokens, whole = torch.arange(subject.anatomy.num_tokens), subject.score(subject.logits)
    if not can_drop(subject):
        raise drop_error(subject.model)
    batch, at_once = len(subject.images), max(1, SAMPLES_AT_ONCE // len(subject.images))
    losses = []
    for dropped in tokens[subject.anatomy.patches].split(at_once):
        kept = torch.stack([tokens[tokens != patch] for patch in dropped])
        images = repeat(subject.images, "b c h w -> (k b) c h w", k=len(dropped))
        logits = logits_with_tokens(subject.model, subject.anatomy, images, repeat(kept, "k n -> (k b) n", b=batch))
        without = [subject.score(part) for part in rearrange(logits, "(k b) c -> k b c", b=batch)]
        losses.append(whole - torch.stack(without))
    losses_of_patches = rearrange(torch.cat(losses), "(r s) b -> b r s", r=subject.anatomy.grid[0])
    _warn_of_rounding(subject, losses_of_patches)
    return losses_of_patches


def _warn_of_rounding(subject: Subject, losses: Tensor) -> None:
    """Warn if the scores of an image round by a large share of what patches change: losses (B, rows, columns)."""
    sizes = reduce((subject.logits * subject.contrast).abs(), "b k -> b", "sum")
    rounding = torch.finfo(subject.logits.dtype).eps * sizes
    largest = reduce(losses.abs(), "b r s -> b", "max")
    rounded = (rounding > ROUNDED * largest) & (largest > 0)
    if rounded.any():
        image = int(rounded.nonzero()[0])
        warnings.warn(
            f"the score of image {image} rounds by {rounding[image]:.2g}, and its patches change it by "
            f"{largest[image]:.2g} at most: give the model and the images in more bits, as by model.double()",
            stacklevel=2,
        )
