"""Finds layers without a skip connection, whose output comes from their attention alone."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from vit.capture.alone import intercept
from vit.capture.moved import changes, noise_like, rounding
from vit.capture.trace import Boundary


def layer_without_skip(model: nn.Module, image: Tensor, calls: Sequence[int], place: Boundary | None) -> int | None:
    """Return the number of the first layer without a skip connection, or None if there is none.

    If the attention of such a layer gives zeros, the tokens after it are the same for every image.

    Args:
        model: A ViT in eval mode.
        image: An image, (1, C, H, W).
        calls: Numbers of the attention calls that are layers.
        place: Where the tokens after the layers are. If it is None, so is the result.
    """
    if place is None or _depend_on_image(model, image, calls, place):
        return None
    return next((layer for layer, call in enumerate(calls) if not _depend_on_image(model, image, [call], place)), None)


@torch.no_grad()
def _depend_on_image(model: nn.Module, image: Tensor, without: Collection[int], place: Boundary) -> bool:
    """Return whether the tokens at a place depend on the image if some attention calls give zeros."""
    three = torch.cat([image, image + noise_like(image), image])  # the first and last results differ by rounding alone
    seen: list[Tensor] = []

    def zeros(call: int, attn: Tensor) -> Tensor:
        return torch.zeros_like(attn) if call in without else attn

    with place.seen(seen.append), intercept(model, three, zeros):
        model(three)
    return bool(changes(seen[-1]).max() > rounding(seen[-1]))
