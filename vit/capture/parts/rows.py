"""Finds tokens whose attention output is thrown away, such as prompts that each layer replaces.

Every token attends to itself alone, apart from one layer, in which it also gets the mean of all values. Its values in
the next layer must then change.

Letters in the einops patterns: k copies of an image, h heads, n queries, m keys, d channels of a head, c
image channels, y x rows and columns of pixels.
"""

from collections.abc import Sequence

import torch
from einops import reduce, repeat
from torch import Tensor, nn

from vit.capture.experiments.moved import changes
from vit.capture.interception.head_order import intercept
from vit.capture.parts.order import STILL, STRENGTHS
from vit.support.precision import in_double


@torch.no_grad()
def layer_with_lost_rows(model: nn.Module, image: Tensor, calls: Sequence[int]) -> tuple[int, int] | None:
    """Return the first layer whose attention does not reach all its tokens, and how many it misses; None if none does.

    Args:
        model: A ViT in eval mode.
        image: An image, (1, C, H, W).
        calls: Numbers of the attention calls that are layers, without a last one that has a single query.
    """
    layers = range(len(calls) - 1)
    lost: dict[int, int] = {}
    for strength in STRENGTHS:  # LayerScale may begin at 1e-6
        # Layer by layer: memory holds two images at any depth.
        missed = {layer: _lost_rows(model, image, calls, layer, strength) for layer in layers}
        lost = {layer: count for layer, count in missed.items() if count}
        if not lost:
            return None
    return min(lost.items())


def _lost_rows(model: nn.Module, image: Tensor, calls: Sequence[int], layer: int, strength: float) -> int:
    """Return the number of tokens that a layer does not move; 0 if it moves none of them."""
    still = 0

    def mean_in_layer(call: int, attn: Tensor) -> Tensor:
        nonlocal still
        if call in calls:
            intercepted.check_all_images(call, attn)
        if call == calls[layer + 1]:
            moved = in_double(reduce(changes(intercepted.values), "1 h m d -> m", "max"))
            still = int((moved <= STILL * moved.max()).sum()) % len(moved)
        if call not in calls:
            return attn
        identity = torch.eye(attn.shape[-1], dtype=attn.dtype, device=attn.device)
        added = strength / attn.shape[-1] if call == calls[layer] else 0.0
        return repeat(torch.stack([identity, identity + added]), "k n m -> k h n m", h=attn.shape[1])

    copies = repeat(image, "1 c y x -> k c y x", k=2)  # the first one stays as it is
    intercepted = intercept(model, copies, mean_in_layer)
    with intercepted:
        model(copies)
    return still
