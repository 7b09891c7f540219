"""Finds layers whose attention has no skip connection of its own, and whether tokens are still those of their patches.

Letters in the einops patterns: k copies of an image, h heads, n queries, m keys, d channels.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import torch
from einops import rearrange, reduce, repeat
from torch import Tensor, nn

from vit.capture.alone import intercept
from vit.capture.moved import changes, noise_like, rounding, spread_of
from vit.capture.order import STRENGTHS
from vit.capture.trace import Boundary

CLEAR = 100  # times rounding: how far a token that enters a layer must be changed to count


@torch.no_grad()
def layer_without_skip(
    model: nn.Module, image: Tensor, calls: Sequence[int], layers: Sequence[Boundary], place: Boundary | None
) -> int | None:
    """Return the number of the first layer that not all tokens pass by, or None if there is none.

    The attention of the layer gives zeros, all others are the identity, and the tokens that enter the layer are
    changed. As many must still be changed when they enter the next layer.

    Args:
        model: A ViT in eval mode.
        image: An image, (1, C, H, W).
        calls: Numbers of the attention calls that are layers.
        layers: Where the tokens enter each layer. If there are none, its values stand for them.
        place: Where the tokens after the layers are. If it is None, the last layer is not looked at.
    """
    places = dict(enumerate(layers)) | ({len(calls): place} if place else {})
    return next(
        (layer for layer in range(len(calls)) if _loses_tokens(model, image, calls, places, layer, layer + 1)), None
    )


@torch.no_grad()
def keeps_patches(
    model: nn.Module, image: Tensor, calls: Sequence[int], layers: Sequence[Boundary], layer: int
) -> bool:
    """Return whether the tokens that enter a layer hold more of their patches than what attention brought there.

    The attention of all layers before gives zeros, and the image is changed. Then each of its tokens must be changed.
    Arguments are as in ``layer_without_skip``.
    """
    return not _loses_tokens(model, image, calls, dict(enumerate(layers)), 0, layer)


def _loses_tokens(
    model: nn.Module, image: Tensor, calls: Sequence[int], places: Mapping[int, Boundary], first: int, last: int
) -> bool:
    """Return whether fewer tokens enter ``last`` changed than layer ``first``, whatever the size of the change."""
    loses = False
    for strength in STRENGTHS:
        entering, leaving = _tokens(model, image, calls, places, range(first, last), strength)
        if entering is None or leaving is None:
            return False
        if entering.isfinite().all() and leaving.isfinite().all():  # large numbers overflow in half precision
            loses = _moved(leaving, 1) < _moved(entering, CLEAR)
            if not loses:
                return False
    return loses


def _tokens(
    model: nn.Module,
    image: Tensor,
    calls: Sequence[int],
    places: Mapping[int, Boundary],
    passed: range,
    strength: float,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the tokens that enter the passed layers and the next one: (K, N, D) each, unchanged, changed, unchanged.

    The third differ from the first by rounding alone.
    """
    first, last = passed.start, passed.stop
    # No attention before the first layer could change its tokens.
    images = torch.cat([image, image + spread_of(image) * noise_like(image) if first == 0 else image, image])
    seen: dict[int, Tensor] = {}

    def edit(call: int, attn: Tensor) -> Tensor:
        if call not in calls:
            return attn
        number = calls.index(call)
        if number in (first, last) and number not in places:
            seen[number] = rearrange(intercepted.values, "k h n d -> k n (h d)")
        if attn.shape[-2] != attn.shape[-1]:
            return attn
        identity = torch.eye(attn.shape[-1]).to(attn)
        weights = repeat(identity * (number not in passed), "n m -> k 1 n m", k=len(images)).clone()
        if number == first - 1:  # other values, not only larger ones, which a norm would undo
            weights[1] += strength * identity.roll(1, dims=1)
        return weights.expand_as(attn)

    intercepted = intercept(model, images, edit)
    with ExitStack() as watched:
        for number in {first, last} & {*places}:
            watched.enter_context(places[number].seen(partial(_keep, seen, number)))
        watched.enter_context(intercepted)
        model(images)
    return seen.get(first), seen.get(last)


def _keep(seen: dict[int, Tensor], number: int, tokens: Tensor) -> None:
    seen[number] = tokens.clone()  # a layer may add to them in place


def _moved(copies: Tensor, clear: float) -> int:
    """Return how many tokens differ between the first two copies by more than ``clear`` times rounding: (K, N, D)."""
    return int((reduce(changes(copies)[0], "n d -> n", "max") > clear * rounding(copies)).sum())
