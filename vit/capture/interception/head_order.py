"""Tells the axis of images from that of heads, by the attention of one image alone and in a batch.

Attention of three axes (B * H, N, M) does not say whether images or heads come first. Letters in the einops patterns: b
batch, h heads, n queries.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.capture.checks.alone import allowed_rounding, check_count, differs_alone, largest_difference, project_attention
from vit.capture.experiments.moved import noise_like
from vit.capture.interception.intercept import Edit, InterceptAttention
from vit.capture.remedy import CHOOSE_OTHERS

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
        moved = [
            largest_difference(rearrange(together[call][0], f"{order} -> b h n", b=2), expected) for order in ORDERS
        ]
        if not min(moved) <= allowed_rounding(model, expected):
            raise differs_alone(model, call, min(moved))
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
