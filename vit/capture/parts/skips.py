"""Finds layers whose attention has no skip connection of its own, and whether tokens are still those of their patches.

Letters in the einops patterns: k copies of an image, c h w its channels, rows and columns; h heads, n queries, m keys,
d channels.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import torch
from einops import rearrange, reduce, repeat
from torch import Tensor, nn

from vit.capture.experiments.moved import MARGIN, changes, noise_like, rounding, spread_of
from vit.capture.interception.head_order import intercept
from vit.capture.parts.order import STRENGTHS
from vit.capture.parts.token_places import Boundary, TokenPlace

CLEAR = 100  # times rounding: how far a token that enters a layer must be changed to count


@torch.no_grad()
def layer_without_skip(
    model: nn.Module, image: Tensor, calls: Sequence[int], layers: Sequence[Boundary], place: TokenPlace | None
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
    # Learned queries may enter the first layer in place of tokens: there, its values stand for them.
    places = dict(enumerate(layers[1:], start=1)) | ({len(calls): place} if place else {})
    return next((layer for layer in range(len(calls)) if _loses_tokens(model, image, calls, places, layer)), None)


@torch.no_grad()
def layers_without_patches(
    model: nn.Module, image: Tensor, calls: Sequence[int], layers: Sequence[Boundary]
) -> set[int]:
    """Return the layers in which tokens are no longer those of their patches, but hold what attention brought there.

    All attention gives zeros, and the image is changed. If fewer tokens change with it in a layer than in the first,
    nothing leads around the attention of a layer before, or the tokens were replaced. For the arguments, see
    ``layer_without_skip``.
    """
    seen: dict[int, Tensor] = {}

    def edit(call: int, attn: Tensor) -> Tensor:
        if call not in calls:
            return attn
        seen.setdefault(calls.index(call), intercepted.values.clone())
        return torch.zeros_like(attn)

    intercepted = intercept(model, _changed(image), edit)
    with ExitStack() as watched:
        for number, place in enumerate(layers[1:], start=1):
            watched.enter_context(place.seen(partial(_keep, seen, number)))
        watched.enter_context(intercepted)
        model(_changed(image))
    counts = {layer: _following(tokens) for layer, tokens in seen.items() if tokens.isfinite().all()}
    return {layer for layer, count in counts.items() if count < counts.get(0, 1)}


def _following(copies: Tensor) -> int:
    """Return how many tokens differ between the first two copies far more than between the first and the third.

    The third is the first again. The copies are (K, N, D), or the values (K, H, N, d) of an attention.
    """
    changed, again = (reduce(change, "... n d -> n", "max") for change in changes(copies))
    return int((changed > MARGIN * again.max()).sum())


def _loses_tokens(
    model: nn.Module, image: Tensor, calls: Sequence[int], places: Mapping[int, TokenPlace], layer: int
) -> bool:
    """Return whether fewer tokens leave a layer changed than enter it changed, whatever the size of the change."""
    loses = False
    for strength in STRENGTHS:
        entering, leaving = _tokens(model, image, calls, places, layer, strength)
        if entering is None or leaving is None:
            return False
        if entering.isfinite().all() and leaving.isfinite().all():  # large numbers overflow in half precision
            # Tokens before the patches may be left out behind the layers.
            loses = _moved(leaving, 1) < _moved(entering[:, -leaving.shape[1] :], CLEAR)
            if not loses:
                return False
    return loses


def _tokens(
    model: nn.Module,
    image: Tensor,
    calls: Sequence[int],
    places: Mapping[int, TokenPlace],
    layer: int,
    strength: float,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the tokens that enter a layer and the next one, (K, N, D) each: unchanged, changed, and unchanged again.

    The third differ from the first by rounding alone.
    """
    # No attention before the first layer could change its tokens.
    images = _changed(image) if layer == 0 else repeat(image, "1 c h w -> k c h w", k=3)
    seen: dict[int, Tensor] = {}

    def edit(call: int, attn: Tensor) -> Tensor:
        if call not in calls:
            return attn
        number = calls.index(call)
        if number in (layer, layer + 1) and number not in places:
            seen[number] = rearrange(intercepted.values, "k h n d -> k n (h d)")
        if attn.shape[-2] != attn.shape[-1]:
            return attn
        identity = torch.eye(attn.shape[-1]).to(attn)
        weights = repeat(identity * (number != layer), "n m -> k 1 n m", k=len(images)).clone()
        if number == layer - 1:  # other values, not only larger ones, which a norm would undo
            weights[1] += strength * identity.roll(1, dims=1)
        return weights.expand_as(attn)

    intercepted = intercept(model, images, edit)
    with ExitStack() as watched:
        for number in {layer, layer + 1} & {*places}:
            watched.enter_context(places[number].seen(partial(_keep, seen, number)))
        watched.enter_context(intercepted)
        model(images)
    return seen.get(layer), seen.get(layer + 1)


def _changed(image: Tensor) -> Tensor:
    """Return an image, a changed copy, and the image again."""
    return torch.cat([image, image + spread_of(image) * noise_like(image), image])


def _keep(seen: dict[int, Tensor], number: int, tokens: Tensor) -> None:
    seen[number] = tokens.clone()  # a layer may add to them in place


def _moved(copies: Tensor, clear: float) -> int:
    """Return how many tokens differ between the first two copies by more than ``clear`` times rounding: (K, N, D)."""
    return int((reduce(changes(copies)[0], "n d -> n", "max") > clear * rounding(copies)).sum())
