"""Finds tokens whose attention output is thrown away, such as prompts that each layer replaces.

Every token attends to itself alone, apart from one layer, in which it also gets the mean of all values. Its values in
the next layer must then change.

Letters in the einops patterns: k copies of an image, h heads, m keys, d channels of a head.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from einops import reduce, repeat
from torch import Tensor, nn

from vit.capture.alone import heads_first_calls
from vit.capture.intercept import InterceptAttention
from vit.capture.moved import changes
from vit.capture.order import STILL, STRENGTHS


@torch.no_grad()
def layer_with_lost_rows(model: nn.Module, image: Tensor, calls: Sequence[int]) -> tuple[int, int] | None:
    """Return the first layer whose attention does not reach all its tokens, and how many it misses; None if none does.

    Args:
        model: A ViT in eval mode.
        image: An image, (1, C, H, W).
        calls: Numbers of the attention calls that are layers, without one of a single query.
    """
    lost: dict[int, int] = {}
    for strength in STRENGTHS:  # LayerScale may begin at 1e-6
        lost = _lost_rows(model, image, calls, strength)
        if not lost:
            return None
    return min(lost.items())


def _lost_rows(model: nn.Module, image: Tensor, calls: Sequence[int], strength: float) -> dict[int, int]:
    """Return by layer the number of tokens that do not move in the next layer, if there are such and others move."""
    lost: dict[int, int] = {}
    following = {call: layer for layer, (_, call) in enumerate(pairwise(calls))}

    def mean_in_one_layer(call: int, attn: Tensor) -> Tensor:
        if call in following:
            moved = reduce(changes(intercepted.values)[following[call]], "h m d -> m", "max").double()
            still = int((moved <= STILL * moved.max()).sum())
            if 0 < still < len(moved):
                lost[following[call]] = still
        if call not in calls:
            return attn
        attn = torch.eye(attn.shape[-1], dtype=attn.dtype, device=attn.device).repeat(*attn.shape[:2], 1, 1)
        attn[calls.index(call) + 1] += strength / attn.shape[-1]
        return attn

    copies = repeat(image, "1 c y x -> k c y x", k=len(calls) + 1)  # the first one stays as it is
    intercepted = InterceptAttention(model, mean_in_one_layer, len(copies), heads_first_calls(model, copies))
    with intercepted:
        model(copies)
    return lost
