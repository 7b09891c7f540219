"""Finds by experiment which tokens enter an attention: the output of a norm, or what enters the layer."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vit.capture.experiments.moved import changes, rounding
from vit.capture.interception.head_order import intercept
from vit.capture.parts.last_tokens import and_first
from vit.capture.parts.token_places import TokenPlace


def attention_input(model: nn.Module, pair: Tensor, call: int, places: Sequence[TokenPlace]) -> TokenPlace | None:
    """Return the last place whose tokens (B, N, D) fix the values and the weights of an attention.

    If there is none, it is the first that fixes the values or the weights, and None if none does. A norm of queries, of
    an adapter or of an MLP before the attention fixes neither, one of values does not fix the weights.

    Args:
        model: A ViT in eval mode.
        pair: Two images, (2, C, H, W).
        call: Number of the attention call.
        places: Norms before it, in order, and then the input of the layer.
    """
    *norms, entry = places
    fixed = {}
    for place in (*norms[::-1], entry):
        fixed[place] = _fixed(model, and_first(pair), call, place)
        if all(fixed[place]):
            return place
    return next((place for place in places if any(fixed[place])), None)


@torch.no_grad()
def _fixed(model: nn.Module, images: Tensor, call: int, place: TokenPlace) -> tuple[bool, bool]:
    """Return whether all images have equal values, and equal weights, in an attention, with the tokens of the first.

    If tokens pass the place more than once before the attention, they have not: its first tokens may be others.
    """
    seen: list[Tensor] = []
    passed = 0

    def of_first(tokens: Tensor) -> Tensor:
        nonlocal passed
        passed += not seen
        return tokens[:1].expand_as(tokens).clone()

    def keep(number: int, attn: Tensor) -> Tensor:
        if number == call:
            seen.extend((intercepted.values, attn))
        return attn

    intercepted = intercept(model, images, keep)
    with intercepted, place.changed(of_first):
        model(images)
    values, attn = (passed == 1 and bool((changes(numbers) <= rounding(numbers)).all()) for numbers in seen)
    return values, attn
