"""Compares an image alone with the same image in a batch: its attention and its logits must be equal.

Letters in the einops patterns: b batch, h heads, n queries, m keys.
"""

from collections.abc import Sequence

import torch
from einops import einsum
from torch import Tensor, nn

from vit.capture.remedy import CHOOSE_OTHERS
from vit.capture.tolerance import allowed_in_logits, are_apart, tolerance

BATCH_TOLERANCE = 1e-3  # of the largest number of a layer: kernels for batches of another size round differently


def project_attention(attn: Tensor) -> Tensor:
    """Project attention onto fixed random numbers, one for each key: (B, H, N, M) -> (B, H, N).

    Projections are compared in place of the weights, because the weights of all layers would fill memory.
    """
    numbers = torch.randn(attn.shape[-1], generator=torch.Generator().manual_seed(0)).to(attn)
    return einsum(attn.detach(), numbers, "b h n m, m -> b h n")


def check_alone(
    model: nn.Module, several: Sequence[Tensor], alone: Sequence[Tensor], row: int, calls: Sequence[int]
) -> None:
    """Check that the attention of each layer for one image alone equals its rows in a batch.

    Args:
        model: The model, which is named in the error.
        several: The projections of all calls for a batch, (B, H, N).
        alone: The same for one of its images, (1, H, N).
        row: The place of this image in the batch.
        calls: Numbers of the calls that are layers. The others are not compared.

    Raises:
        ValueError: If they differ.
    """
    check_count(model, len(several), len(several[0]), len(alone))
    for call in calls:
        moved = largest_difference(several[call][row : row + 1], alone[call])
        if not moved <= allowed_rounding(model, alone[call]):
            raise differs_alone(model, call, moved)


def check_logits_alone(
    model: nn.Module, count: int, usual: Tensor, several: Tensor, alone: Tensor, beside: str = "alone"
) -> None:
    """Raise a ValueError if the logits of an image differ between a batch and the image alone, or in a smaller batch.

    Args:
        model: The model.
        count: Number of images in the batch.
        usual: How much images move each logit, as ``usual_changes`` returns it.
        several: The logits of the image in the batch.
        alone: Its logits alone, or beside fewer others.
        beside: What the image had beside it then, in words.
    """
    if several.shape != alone.shape:
        raise ValueError(
            f"{type(model).__name__} returns logits of shape {tuple(several.shape)} for one of several images and "
            f"{tuple(alone.shape)} for an image {beside}: keep the axis of images, as by squeeze(-1) in place of "
            "squeeze()"
        )
    apart = are_apart(several.detach(), alone, allowed_in_logits(model, alone, usual, BATCH_TOLERANCE))
    if apart.any():
        moved = (several.detach() - alone).abs()[apart].max()
        raise ValueError(
            f"the logits of {type(model).__name__} differ by {moved.item():.2g} between an image {beside} and "
            f"the same image in a batch of {count}, so the images of a batch change each other (or the place of an "
            "image in it changes its logits): give one image at a time"
        )


def check_count(model: nn.Module, several: int, num_images: int, alone: int) -> None:
    """Raise a ValueError if a model calls attention another number of times for several images than for one of them."""
    if several != alone:
        raise ValueError(
            f"{type(model).__name__} has {several} attentions for {num_images} images and {alone} for one of them: it "
            "passes images one by one, or skips layers for some, so attention number n is not the same layer for all: "
            f"{CHOOSE_OTHERS}"
        )


def differs_alone(model: nn.Module, call: int, moved: float) -> ValueError:
    """Return the error of an attention that an image has alone and not in a batch."""
    return ValueError(
        f"attention {call} of {type(model).__name__} differs by {moved:.2g} between an image alone and the same image "
        "in a batch: its axes are not images, heads, queries and keys in an order that can be found, or the images of "
        "a batch change each other: give one image at a time"
    )


def largest_difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors, infinite if their shapes differ."""
    return (one - other).abs().max().item() if one.shape == other.shape else float("inf")


def allowed_rounding(model: nn.Module, numbers: Tensor) -> float:
    """Return how far rounding may move the numbers of a layer."""
    return tolerance(model, numbers, BATCH_TOLERANCE) * numbers.abs().max().item()
