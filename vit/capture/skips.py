"""Finds layers without a skip connection: tokens pass them through their attention alone."""

from collections.abc import Sequence

from torch import Tensor, nn

from vit.capture.last_tokens import logits_pass


def layer_without_skip(model: nn.Module, pair: Tensor, calls: Sequence[int]) -> int | None:
    """Return the number of the first layer that nothing of the image passes but through its attention, or None.

    Without its weights, such a layer gives equal logits for two images. Only the images' tokens tell: a model of one
    layer that reads a class token has no way around its attention in either case, and is not looked at.

    Args:
        model: A ViT in eval mode.
        pair: Two images, (2, C, H, W).
        calls: Numbers of the attention calls that are layers.
    """
    if len(calls) < 2:
        return None
    return next((layer for layer, call in enumerate(calls) if logits_pass(model, pair, call)), None)
