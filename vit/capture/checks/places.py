"""Checks that the tokens that an attention mixes are places in the image, the same ones in every head.

A few strips of pixels are changed. A token of attention over channels responds to all of them. If windows are folded
into heads, a token is another place in each head, and responds to other strips.

Letters in the einops patterns: k copies of an image, h heads, m keys, d channels of a head.
"""

import torch
from einops import reduce
from torch import Tensor, nn

from vit.capture.experiments.moved import changes, noise_like, spread_of
from vit.capture.parts.patches import find_patches, values_of
from vit.capture.remedy import CHOOSE_OTHERS
from vit.support.precision import in_double

STRIPS = 2  # of rows, and as many of columns
SMALL = 0.05  # a token depends on a strip if its response exceeds this share of its largest one
NONE = 1e-3  # a response below this share of the largest counts as none


def check_places(model: nn.Module, image: Tensor, call: int) -> None:
    """Check which strips of an image (1, C, H, W) change the values of an attention call.

    Raises:
        ValueError: If its tokens are channels or do not depend on the image, or are other places in each head.
    """
    responses = _responses(model, image, call)
    if not responses.isfinite().all():
        return
    check_heads(model, responses)
    by_token = reduce(responses, "k h m -> k m", "max")
    largest = by_token.amax(dim=0)
    moved = largest > NONE * largest.max()
    everywhere = (by_token > SMALL * largest).all(dim=0)
    is_local = moved.any() and not everywhere[moved].all()
    if not is_local and find_patches(model, image, call, responses.shape[-1]) is None:
        raise no_patches_error(model, responses.shape[-1])


def check_heads(model: nn.Module, responses: Tensor) -> None:
    """Raise a ValueError if the heads respond to different strips: responses (strips, H, M)."""
    largest = responses.amax(dim=0)
    alive = largest > NONE * largest.max()
    of_head = responses / largest.clamp(min=torch.finfo(responses.dtype).tiny)
    # The strips that change a token most in one head change it in no other one.
    apart = (of_head[:, :, None] == 1) & (of_head[:, None] < NONE) & alive[:, None] & alive[None]
    if apart.any():
        raise ValueError(
            f"{type(model).__name__} attends within windows or spans that are folded into heads (the same pixels "
            f"change a token in one head alone), so its maps are not of whole images: {CHOOSE_OTHERS}"
        )


def no_patches_error(model: nn.Module, num_tokens: int) -> ValueError:
    """Return the error of a model whose tokens form no grid of patches."""
    return ValueError(
        f"{type(model).__name__} has {num_tokens} tokens, among which changed strips of an image move no grid of "
        "patches: its attention is over channels or a memory, other tokens stand between its patches, these are not in "
        f"order or have gaps, or every token depends on the whole image; {CHOOSE_OTHERS}"
    )


@torch.inference_mode(False)
@torch.no_grad()
def _responses(model: nn.Module, image: Tensor, call: int) -> Tensor:
    """Return how much each strip, first those of rows, changes each token in each head: (strips, H, M)."""
    masks = []
    for axis in (0, 1):
        side = image.shape[2 + axis]
        strip_of = torch.div(torch.arange(side) * min(STRIPS, side), side, rounding_mode="floor")
        inside = (strip_of == torch.arange(min(STRIPS, side))[:, None]).to(image)
        masks.append(inside[:, None, :, None] if axis == 0 else inside[:, None, None])
    changed = torch.cat([image + mask * spread_of(image) * noise_like(image) for mask in masks])
    values = values_of(model, torch.cat([image, changed]), call)
    return reduce(in_double(changes(values)), "k h m d -> k h m", "max")
