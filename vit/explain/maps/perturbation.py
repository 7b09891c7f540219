"""Maps made by taking patches away and looking at the logit.

Letters in the einops patterns: b batch, k patches taken away side by side, n tokens, d channels, r s grid rows and
columns.
"""

import torch
from einops import rearrange, reduce, repeat
from torch import Tensor, nn

from vit.attention.mechanisms import Mechanism
from vit.capture.anatomy import Anatomy
from vit.capture.attention import logits_of
from vit.explain.maps.gradients import SAMPLES_AT_ONCE, captum
from vit.explain.maps.subject import Subject


def occlusion(subject: Subject) -> Tensor:
    """How much the logit falls when a patch is painted grey; may be negative: -> (B, rows, columns).

    Grey is 0 after normalisation, the mean colour of the training images (Zeiler and Fergus 2014). Each patch costs one
    pass of the whole model.
    """
    rows, columns = subject.grid
    channels, height, width = subject.images.shape[1:]
    patch = (channels, height // rows, width // columns)

    def score(images: Tensor, contrast: Tensor) -> Tensor:
        return reduce(logits_of(subject.model(images)) * contrast, "b c -> b", "sum")

    pixels = (
        captum()
        .Occlusion(score)
        .attribute(
            subject.images,
            sliding_window_shapes=patch,
            strides=patch,
            additional_forward_args=subject.contrast,
            perturbations_per_eval=max(1, SAMPLES_AT_ONCE // len(subject.images)),
        )
    )
    return subject.pixels_as_map(pixels, "mean")


def token_drop(subject: Subject) -> Tensor:
    """How much the logit falls when the token of a patch is left out; may be negative: -> (B, rows, columns).

    No colour has to stand for nothing: the model gets one token less, which it was never told the number of.
    """
    if not can_drop(subject):
        raise _not_without(subject.model)
    patches = torch.arange(subject.anatomy.num_tokens)[subject.anatomy.patches]
    batch, at_once = len(subject.images), max(1, SAMPLES_AT_ONCE // len(subject.images))
    tokens = torch.arange(subject.anatomy.num_tokens)
    losses = []
    for dropped in patches.split(at_once):
        kept = torch.stack([tokens[tokens != patch] for patch in dropped])
        images = repeat(subject.images, "b c h w -> (k b) c h w", k=len(dropped))
        logits = logits_with_tokens(subject.model, subject.anatomy, images, repeat(kept, "k n -> (k b) n", b=batch))
        without = [subject.score(part) for part in rearrange(logits, "(k b) c -> k b c", b=batch)]
        losses.append(subject.score(subject.logits) - torch.stack(without))
    return rearrange(torch.cat(losses), "(r s) b -> b r s", r=subject.anatomy.grid[0])


@torch.no_grad()
def logits_with_tokens(model: nn.Module, anatomy: Anatomy, images: Tensor, kept: Tensor) -> Tensor:
    """Logits of a model that gets some of the tokens only: images (B, C, H, W), numbers (B, n) -> (B, classes).

    Positions are added before, so that each token still knows where it stands.

    Raises:
        ValueError: If the model has no place where tokens can be left out, or needs the whole grid.
    """
    needs_grid = any(isinstance(module, Mechanism) and "grid" in module.takes for module in model.modules())
    if anatomy.entry is None or needs_grid:
        raise _not_without(model)
    kept = kept.to(images.device)

    def choose(tokens: Tensor) -> Tensor:
        return tokens.gather(1, repeat(kept, "b n -> b n d", d=tokens.shape[-1]))

    try:
        with anatomy.entry.changed(choose):
            return logits_of(model(images))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # of a shape that does not fit
        raise _not_without(model) from error


def can_drop(subject: Subject) -> bool:
    """Whether the model can do without some of its tokens; one image is tried without half of its patches.

    Half of them, as positions by rotation may go wrong silently where as few are left out as there are prefix tokens.
    """
    try:
        anatomy = subject.anatomy
        tokens = torch.arange(anatomy.num_tokens)
        kept = torch.cat(
            [tokens[: anatomy.patches.start], tokens[anatomy.patches][::2], tokens[anatomy.patches.stop :]]
        )
        logits_with_tokens(subject.model, anatomy, subject.images[:1], rearrange(kept, "n -> 1 n"))
    except ValueError:  # of attention that cannot be seen, too
        return False
    return True


def _not_without(model: nn.Module) -> ValueError:
    return ValueError(
        f"tokens of {type(model).__name__} cannot be left out, as no module hands them over or its attention needs the "
        "whole grid: choose 'occlusion'"
    )
