"""Finds tokens that do not take what an attention gives them, so that a map would carry on what never arrives.

These are prompts that each layer puts in anew, the tokens of a layer that is skipped for an image, or tokens that were
halted. The weights of one layer are changed, and the tokens must then be others in the next layer.

Letters in the einops patterns: b batch, h heads, m keys, d channels.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from einops import rearrange, reduce
from torch import Tensor, nn

from vit.capture.experiments.moved import COARSE, UNITS, noise_like
from vit.capture.interception.head_order import intercept
from vit.capture.parts.logits import result_of
from vit.capture.parts.order import STRENGTHS
from vit.capture.parts.token_places import TokenPlace

AT_ONCE = 8  # images whose values of all layers are in memory
PEAKED = 3.0  # standard deviation of the logits of the weights that are added


class Lost(NamedTuple):
    """Tokens that do not take what an attention gives them."""

    layer: int
    image: int  # of the batch, from 0
    count: int  # of tokens


@torch.no_grad()
def lost_tokens(
    model: nn.Module,
    images: Tensor,
    calls: Sequence[int],
    depth: int,
    place: TokenPlace | None,
    read: Tensor,
    of_layer: int | None = None,
) -> Lost | None:
    """Return tokens that do not take what an attention gives them; None if all do.

    Args:
        model: A ViT in eval mode.
        images: Images as the model takes them, (B, C, H, W).
        calls: Numbers of the attention calls that influence the logits.
        depth: How many of them are layers, the first ones.
        place: Where the tokens after the last layer are. None: the logits show whether any token takes something.
        read: Which of these tokens the logits read, (B, N).
        of_layer: If given, only this layer counts, and only tokens that are read.
    """
    for first in range(0, len(images), AT_ONCE):
        some = images[first : first + AT_ONCE]
        usual = _states(model, some, calls, place)
        for layer in range(depth) if of_layer is None else [of_layer]:
            are_read_alone = of_layer is not None or layer == len(calls) - 1
            still = _first_suspects(usual[layer], read[first : first + AT_ONCE], place, are_read_alone)
            for strength in STRENGTHS:  # LayerScale may begin at 1e-6
                (changed,) = _states(model, some, calls, place, layer, strength)
                still = still & ~_moved(usual[layer], changed)
                if not still.any():
                    break
            else:
                image = int(still.any(dim=1).nonzero()[0, 0])
                return Lost(layer, first + image, int(still[image].sum()))
    return None


def _first_suspects(state: Tensor, read: Tensor, place: TokenPlace | None, are_read_alone: bool) -> Tensor:
    """Return which tokens that a layer leads to are looked at, (B, M): all but a class token that enters behind it.

    Of those after the last layer, only the ones that the logits read matter, (B, N).
    """
    if are_read_alone and place is not None:
        return read[:, -state.shape[1] :]  # tokens before the patches may be left out
    suspects = torch.ones(state.shape[:2], dtype=torch.bool, device=state.device)
    suspects[:, : max(0, state.shape[1] - read.shape[1])] = False
    return suspects


class _ReachedError(Exception):
    """Ends a pass early, once the next layer is reached."""


def _states(
    model: nn.Module,
    images: Tensor,
    calls: Sequence[int],
    place: TokenPlace | None,
    layer: int | None = None,
    strength: float = 0.0,
) -> list[Tensor]:
    """Return what each layer leads to: the values of the next one, (B, M, d) each, and the last tokens or the logits.

    With a layer, its weights are changed, and only what it leads to is returned.
    """
    states: list[Tensor] = []
    last: list[Tensor] = []

    def look(call: int, attn: Tensor) -> Tensor:
        number = calls.index(call) if call in calls else None
        if number is not None:
            intercepted.check_all_images(call, attn)
        if number and layer in (None, number - 1):
            states.append(rearrange(intercepted.values, "b h m d -> b m (h d)"))
            if layer is not None:
                raise _ReachedError
        if number is None or number != layer:
            return attn
        return attn + strength * (PEAKED * noise_like(attn[:1, :1])).softmax(dim=-1)

    intercepted = intercept(model, images, look)
    try:
        with nullcontext() if place is None else place.seen(lambda tokens: last.append(tokens.clone())), intercepted:
            logits = result_of(model(images))
    except _ReachedError:
        return states
    return [*states, last[-1] if last else logits.flatten(1)[:, None]]


def _moved(usual: Tensor, changed: Tensor) -> Tensor:
    """Return which tokens differ by more than rounding: (B, M, d) twice -> (B, M)."""
    units = UNITS.get(usual.dtype, COARSE) * torch.finfo(usual.dtype).eps
    rounding = units * reduce(usual.abs(), "b m d -> b 1", "max")
    return ~(reduce((changed - usual).abs(), "b m d -> b m", "max") <= rounding)  # what overflows has moved
