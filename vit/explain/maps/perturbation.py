"""Maps made by removing patches, one at a time.

Letters in the einops patterns: b batch, k patches removed in one pass, n tokens, d channels, r s grid rows and
columns, c image channels or classes, h w rows and columns of pixels.
"""

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from vit.attention.mechanisms import Mechanism
from vit.capture.anatomy import Anatomy
from vit.capture.checks.steady import check_logits_unchanged
from vit.capture.experiments.moved import usual_changes
from vit.capture.parts.logits import logits_of
from vit.explain.maps.gradients import CAPTUM, SAMPLES_AT_ONCE
from vit.explain.maps.subject import Subject
from vit.support.extras import import_extra


def occlusion(subject: Subject) -> Tensor:
    """Measure how much the score falls when a patch is painted grey; may be negative: -> (B, rows, columns).

    Grey is 0 after normalisation, the mean colour of the training images (Zeiler and Fergus 2014). Each patch costs one
    pass of the whole model.
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
    return subject.sum_over_patches(pixels) / subject.sum_over_patches(torch.ones_like(pixels))


def token_drop(subject: Subject) -> Tensor:
    """Measure how much the score falls when the token of a patch is dropped; may be negative: -> (B, rows, columns).

    Unlike occlusion, this needs no fill colour: the model runs with one token fewer.
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
    return rearrange(torch.cat(losses), "(r s) b -> b r s", r=subject.anatomy.grid[0])


@torch.no_grad()
def logits_with_tokens(model: nn.Module, anatomy: Anatomy, images: Tensor, kept: Tensor) -> Tensor:
    """Return the logits from some of the tokens: images (B, C, H, W), indices of tokens (B, n) -> (B, classes).

    Tokens are dropped after their positions are added.

    Raises:
        ValueError: If the model has no place where tokens can be dropped, or needs the whole grid.
    """
    needs_grid = any(isinstance(module, Mechanism) and "grid" in module.takes for module in model.modules())
    if anatomy.parts.entry is None or needs_grid:
        raise drop_error(model)
    kept = kept.to(images.device)

    def choose(tokens: Tensor) -> Tensor:
        return tokens.gather(1, repeat(kept, "b n -> b n d", d=tokens.shape[-1]))

    try:
        with anatomy.parts.entry.changed(choose):
            return logits_of(model(images))
    except torch.OutOfMemoryError:
        raise
    except (AssertionError, IndexError, RuntimeError, ValueError) as error:  # the number of tokens does not fit
        raise drop_error(model) from error


def can_drop(subject: Subject) -> bool:
    """Return whether the model runs with fewer tokens and does not read positions from their order.

    One image is passed with its patches in another order, and the logits must not change. If a model reads positions
    from the token order, it confuses the patches. The model must also run without half of the patches, and its logits
    must read nothing of the image but these tokens.
    """
    try:
        anatomy, image = subject.anatomy, subject.images[:1]
        tokens = torch.arange(anatomy.num_tokens)
        patches = tokens[anatomy.patches]
        plain = logits_with_tokens(subject.model, anatomy, image, tokens[None])
        half = tokens[~torch.isin(tokens, patches[1::2])]
        without_half = logits_with_tokens(subject.model, anatomy, image, half[None])
        # By chance, as a circle of patches looks the same after a roll or a mirror.
        order = patches[torch.randperm(len(patches), generator=torch.Generator().manual_seed(0))]
        other = logits_with_tokens(subject.model, anatomy, image, tokens.index_copy(0, patches, order)[None])
        check_logits_unchanged(subject.model, usual_changes(torch.cat([plain, without_half])), other, plain)
        return subject.logits_are_made_of(anatomy.parts.entry)
    except ValueError:  # also raised if attention cannot be captured
        return False


def drop_error(model: nn.Module) -> ValueError:
    """Return the error of a model that needs all its tokens."""
    return ValueError(
        f"tokens of {type(model).__name__} cannot be left out, as no module passes them on, its attention needs the "
        "whole grid, its logits read more than these tokens, or it finds positions by the order of tokens: choose "
        "'occlusion'"
    )
