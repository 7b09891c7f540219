"""Compares the attention of one image alone with its rows in a batch, to tell the axis of images from that of heads.

Attention of three axes (B * H, N, M) does not say whether images or heads come first. Nor do four axes if there are as
many images as heads. Letters in the einops patterns: b batch, h heads, n queries, m keys.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

from vit.capture.intercept import HALF_PRECISION_MODELS, Edit, InterceptAttention
from vit.capture.moved import moved_by_images, noise_like, two_of
from vit.capture.remedy import CHOOSE_OTHERS

BATCH_TOLERANCE = 1e-3  # of the largest number of a layer: kernels for batches of another size round differently
HALF_TOLERANCE = 0.05  # the same after rounding to half precision or to integers
ORDERS = ("(b h) n", "(h b) n")
# What heads_first_calls has found.
HEADS_FIRST_CALLS: WeakKeyDictionary[nn.Module, frozenset[int]] = WeakKeyDictionary()


def heads_first_calls(model: nn.Module, images: Tensor) -> frozenset[int]:
    """Return the numbers of the attention calls with three axes in which heads come before images: (H * B, N, M).

    The result is kept for each model, because it is needed for every pass.

    Args:
        model: A ViT in eval mode.
        images: Images as the model takes them, (B, C, H, W). The first one is passed alone and beside a noisy copy.

    Raises:
        ValueError: If attention of three axes is in neither order.
    """
    if len(images) < 2:  # all of the first axis are heads
        return frozenset()
    if model not in HEADS_FIRST_CALLS:
        flat = [call for call, attn in enumerate(_undivided(model, images[:2])) if len(attn) == 1]
        HEADS_FIRST_CALLS[model] = _heads_first(model, images[:1], flat) if flat else frozenset()
    return HEADS_FIRST_CALLS[model]


def intercept(model: nn.Module, images: Tensor, edit: Edit) -> InterceptAttention:
    """Return a context that intercepts passes of as many images (B, C, H, W), whether they come before heads or not."""
    return InterceptAttention(model, edit, len(images), heads_first_calls(model, images))


def share_head_order(model: nn.Module, copied: nn.Module) -> None:
    """Store the result of ``heads_first_calls`` for a copy of the model: it needs no further pass, which hooks see."""
    if model in HEADS_FIRST_CALLS:
        HEADS_FIRST_CALLS[copied] = HEADS_FIRST_CALLS[model]


@torch.no_grad()
def _heads_first(model: nn.Module, image: Tensor, flat: Sequence[int]) -> frozenset[int]:
    """Return which of the calls with three axes have the heads first."""
    pair = torch.cat([image, image + noise_like(image)])
    together = _undivided(model, pair)
    alone = [_undivided(model, one) for one in pair.split(1)]
    for projections in alone:
        check_count(model, len(together), len(pair), len(projections))
    if len(together) <= flat[-1]:
        raise ValueError(
            f"{type(model).__name__} has {len(together)} attentions for two images and more for two others: it skips "
            f"layers for some, so attention number n is not the same layer for all: {CHOOSE_OTHERS}"
        )
    found = []
    for call in flat:
        expected = torch.cat([projections[call] for projections in alone])  # (2, H, N)
        if together[call][0].shape != rearrange(expected, "b h n -> (b h) n").shape:
            continue  # the tokens of both images are one sequence
        moved = [_moved(rearrange(together[call][0], f"{order} -> b h n", b=2), expected) for order in ORDERS]
        if not min(moved) <= _allowed(model, expected):
            raise _differs(model, call, min(moved))
        if moved[1] < moved[0]:
            found.append(call)
    return frozenset(found)


def _undivided(model: nn.Module, images: Tensor) -> list[Tensor]:
    """Return the projection of each call. Attention of three axes stays in one piece: (1, B * H, N)."""
    kept: list[Tensor] = []

    def keep(_: int, attn: Tensor) -> Tensor:
        kept.append(project_attention(attn))
        return attn

    with InterceptAttention(model, keep, num_images=1):
        model(images)
    return kept


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
        moved = _moved(several[call][row : row + 1], alone[call])
        if not moved <= _allowed(model, alone[call]):
            raise _differs(model, call, moved)


def check_logits_alone(model: nn.Module, images: Tensor, several: Tensor, alone: Tensor) -> None:
    """Raise a ValueError if the logits of an image differ between a batch and the image alone, or in a smaller batch.

    Args:
        model: The model.
        images: The batch. What a change of its first image moves is the scale of a logit near 0.
        several: The logits of the image in the batch.
        alone: Its logits alone.
    """
    if several.shape != alone.shape:
        raise ValueError(
            f"{type(model).__name__} returns logits of shape {tuple(several.shape)} for one of several images and "
            f"{tuple(alone.shape)} for an image alone: keep the axis of images, as by squeeze(-1) in place of squeeze()"
        )
    share = tolerance(model, alone, BATCH_TOLERANCE)
    moved = _moved(several.detach(), alone) if alone.numel() else 0.0
    if not alone.numel() or moved <= share * alone.abs().max().item():
        return
    if not moved <= share * moved_by_images(model, two_of(images[:1])):
        raise ValueError(
            f"the logits of {type(model).__name__} differ by {moved:.2g} between an image alone and the same image in "
            "a batch: the images of a batch change each other: give one image at a time"
        )


def check_count(model: nn.Module, several: int, num_images: int, alone: int) -> None:
    """Raise a ValueError if a model calls attention another number of times for several images than for one of them."""
    if several != alone:
        raise ValueError(
            f"{type(model).__name__} has {several} attentions for {num_images} images and {alone} for one of them: it "
            "passes images one by one, or skips layers for some, so attention number n is not the same layer for all: "
            f"{CHOOSE_OTHERS}"
        )


def _differs(model: nn.Module, call: int, moved: float) -> ValueError:
    return ValueError(
        f"attention {call} of {type(model).__name__} differs by {moved:.2g} between an image alone and the same image "
        "in a batch: its axes are not images, heads, queries and keys in an order that can be found, or the images of "
        "a batch change each other: give one image at a time"
    )


def _moved(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item() if one.shape == other.shape else float("inf")


def _allowed(model: nn.Module, numbers: Tensor) -> float:
    return tolerance(model, numbers, BATCH_TOLERANCE) * numbers.abs().max().item()


def tolerance(model: nn.Module, numbers: Tensor, exact: float) -> float:
    """Return by which share of the largest number rounding may move numbers: ``exact``, or more with fewer bits.

    The largest number in the batch sets the step size of dynamically quantised layers.
    """
    is_quantised = any("quantized" in type(module).__module__ for module in model.modules()) or any(
        type(weights) is not nn.Parameter for weights in model.parameters()
    )
    return HALF_TOLERANCE if is_quantised or is_half(model, numbers) else exact


def is_half(model: nn.Module, numbers: Tensor) -> bool:
    """Return whether numbers that a model computed were rounded to half precision, themselves or on the way."""
    is_autocast = torch.is_autocast_enabled(numbers.device.type)
    return torch.finfo(numbers.dtype).bits < 32 or is_autocast or model in HALF_PRECISION_MODELS
