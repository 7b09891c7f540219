"""Checks that all images of a batch pass the same layers as the two images by which the model was examined."""

import torch
from torch import Tensor, nn

from vit.capture.anatomy import Anatomy
from vit.capture.interception.head_order import intercept
from vit.capture.parts.last_tokens import fixes_logits, pooled_row_fixes_logits, result_fixes_logits


@torch.no_grad()
def pass_alike(model: nn.Module, images: Tensor, anatomy: Anatomy) -> bool:
    """Return whether images (B, C, H, W) pass as many attentions as the first two, and are read at the same place.

    Some models exit early if they are sure of an image, or of all images of a batch.
    """
    if len(images) <= 2:
        return True
    with intercept(model, images, lambda _, attn: attn) as counting:
        model(images)
    if counting.num_calls != anatomy.num_calls:
        return False
    if anatomy.pooled:
        return pooled_row_fixes_logits(model, images, anatomy.calls[-1])
    if (place := anatomy.reading.place) is not None:
        return fixes_logits(model, place, images)
    last = anatomy.reading.call
    return not anatomy.last_result or result_fixes_logits(model, images, last, anatomy.last_result, anatomy.num_tokens)
