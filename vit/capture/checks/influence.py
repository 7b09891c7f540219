"""Finds tokens that do not take what an attention gives them, so that it never reaches the logits.

These are prompts that each layer puts in anew, the tokens of a layer that is skipped for an image, or tokens that were
halted. A gradient of zero with respect to the weights of a token is the suspicion. Other weights in their place, which
leave the logits as they are, are the proof.

Letters in the einops patterns: b batch, h heads, n queries, m keys.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from einops import einsum, reduce
from torch import Tensor, nn

from vit.capture.attention import capture_unchecked, run_intercepted
from vit.capture.experiments.moved import COARSE, UNITS, noise_like
from vit.capture.parts.logits import result_of
from vit.capture.parts.order import Orders

AT_ONCE = 4  # images whose gradients are in memory
LEAST = 1e-3  # of an even share of the attention: a weight below it reaches nothing
PEAKED = 3.0  # standard deviation of the logits of other weights


class Lost(NamedTuple):
    """Tokens that do not take what an attention gives them."""

    layer: int
    image: int  # of the batch, from 0
    count: int  # of tokens


@torch.inference_mode(False)
def lost_tokens(
    model: nn.Module, images: Tensor, calls: Sequence[int], depth: int, orders: Orders, readout: Tensor
) -> Lost | None:
    """Return tokens that do not take what an attention gives them although the logits read them; None if all do.

    Args:
        model: A ViT in eval mode.
        images: Images as the model takes them, (B, C, H, W).
        calls: Numbers of the attention calls that influence the logits.
        depth: Number of the first of them that are layers.
        orders: Places of tokens, as in ``Anatomy.orders``.
        readout: Share of each token in the logits of each image, (B, N).
    """
    for first in range(0, len(images), AT_ONCE):
        some = images[first : first + AT_ONCE]
        suspects = _without_gradient(model, some, calls, depth, orders, readout[first : first + AT_ONCE] > 0)
        for layer, rows in enumerate(suspects):
            lost = rows.any(dim=1)
            if lost.any():
                lost &= ~_move_logits(model, some, calls, orders, layer, rows)
            if lost.any():
                image = int(lost.nonzero()[0, 0])
                return Lost(layer, first + image, int(rows[image].sum()))
    return None


def _without_gradient(
    model: nn.Module, images: Tensor, calls: Sequence[int], depth: int, orders: Orders, reached: Tensor
) -> list[Tensor]:
    """Return the tokens of each layer that the logits should read, and whose weights have no gradient: (B, N) each.

    ``reached`` are the tokens after the last layer that the logits read, (B, N).
    """
    with torch.enable_grad():
        attentions = capture_unchecked(model, images, calls, orders)
    logits = result_of(attentions.logits).flatten(1)
    gradients: Sequence[Tensor | None] = [None] * depth
    if logits.requires_grad:
        try:
            score = (logits * noise_like(logits[:1])).sum()
            gradients = torch.autograd.grad(score, attentions[:depth], allow_unused=True)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # tokens that are changed in place: the other weights tell alone
            pass
    suspects = []
    for attn, gradient in zip(attentions[:depth][::-1], gradients[::-1], strict=True):
        has_none = gradient is None or reduce(gradient != 0, "b h n m -> b n", "max").logical_not()
        suspects.append(reached & has_none)
        weighs = reduce(attn.detach().abs(), "b h n m -> b n m", "max") * attn.shape[-1] > LEAST
        reached = reached | (einsum(reached.float(), weighs.float(), "b n, b n m -> b m") > 0)
    return suspects[::-1]


@torch.no_grad()
def _move_logits(
    model: nn.Module, images: Tensor, calls: Sequence[int], orders: Orders, layer: int, rows: Tensor
) -> Tensor:
    """Return whether the logits of each image depend on the weights of some tokens, (B, N), in a layer: (B,)."""

    def others(number: int, attn: Tensor) -> Tensor:
        if number != layer:
            return attn
        weights = (PEAKED * noise_like(attn[:1, :1])).softmax(dim=-1)
        return torch.where(rows[:, None, :, None], weights, attn)

    usual, changed = (
        result_of(run_intercepted(model, images, edit, calls, orders)).flatten(1)
        for edit in (lambda _, attn: attn, others)
    )
    units = UNITS.get(usual.dtype, COARSE) * torch.finfo(usual.dtype).eps
    return (changed - usual).abs().amax(dim=1) > units * usual.abs().amax(dim=1)
