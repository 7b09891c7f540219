"""Checks that the tokens that an attention mixes are places in the image, the same ones in every head.

Halves of the image are changed, and ever wider bands beside each other from its middle on, which no crop cuts off. A
token of attention over channels responds to all halves. If windows or spans are folded into heads, a token is another
place in each head: of two parts of the image, one head responds to this one alone, and another head to that one alone.

Letters in the einops patterns: k parts of an image, h heads, m keys, d channels of a head.
"""

from itertools import pairwise

import torch
from einops import einsum, rearrange, reduce
from torch import Tensor, nn

from vit.capture.experiments.moved import changes, noise_like, spread_of
from vit.capture.parts.patches import find_patches, values_of
from vit.capture.remedy import CHOOSE_OTHERS
from vit.support.precision import in_double

BANDS = (2, 4, 8, 16, 32, 64)  # a band ends after one of so many parts of the rows, or of the columns
SMALL = 0.05  # a token depends on a half if its response exceeds this share of its largest one
LARGE = 0.3  # of two bands in a patch, one covers a quarter of it or more, and has half of its response
NONE = 1e-3  # a response below this share of the largest counts as none
NOISES = 4  # a head of one channel is still by chance for one noise, but not for so many


def check_places(model: nn.Module, image: Tensor, call: int) -> None:
    """Check which halves and bands of an image (1, C, H, W) change the values of an attention call.

    Raises:
        ValueError: If its tokens are channels or do not depend on the image, or are other places in each head.
    """
    halves, bands = parts_of_image(image)
    responses = _responses(model, image, call, [*halves, *bands])
    if not responses.isfinite().all():
        return
    if heads_are_apart(responses) and heads_are_apart(_responses(model, image, call, [*halves, *bands], NOISES)):
        raise ValueError(
            f"{type(model).__name__} attends within windows or spans that are folded into heads (the same pixels "
            f"change a token in one head alone), so its maps are not of whole images: {CHOOSE_OTHERS}"
        )
    by_token = reduce(responses[: len(halves)], "k h m -> k m", "max")
    largest = by_token.amax(dim=0)
    moved = largest > NONE * largest.max()
    everywhere = (by_token > SMALL * largest).all(dim=0)
    is_local = moved.any() and not everywhere[moved].all()
    if not is_local and find_patches(model, image, call, responses.shape[-1]) is None:
        raise no_patches_error(model, responses.shape[-1])


def heads_are_apart(responses: Tensor) -> bool:
    """Return whether a token moves much by one part of the image alone in a head, and by another part alone in another.

    The responses are (parts, H, M).
    """
    largest = responses.amax(dim=0)
    alive = largest > NONE * largest.max()
    of_head = responses / largest.clamp(min=torch.finfo(responses.dtype).tiny)
    much, not_at_all = ((of_head > LARGE) & alive).double(), ((of_head < NONE) & alive).double()
    # For each token: which heads move much by one part and not at all by another one.
    alone = einsum(much, not_at_all, "k h m, other h m -> m k other")
    return bool(((alone > 0) & (alone.mT > 0)).any())


def no_patches_error(model: nn.Module, num_tokens: int) -> ValueError:
    """Return the error of a model whose tokens form no grid of patches."""
    return ValueError(
        f"{type(model).__name__} has {num_tokens} tokens, among which changed strips of an image move no grid of "
        "patches: its attention is over channels or a memory, other tokens stand between its patches, these are not in "
        f"order or have gaps, or every token depends on the whole image; {CHOOSE_OTHERS}"
    )


def parts_of_image(image: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the halves of an image (1, C, H, W) and bands from its middle on, as masks (1, 1, H, 1), (1, 1, 1, W)."""
    halves, bands = [], []
    for axis, pattern in ((2, "n -> 1 1 n 1"), (3, "n -> 1 1 1 n")):
        side = image.shape[axis]
        line = rearrange(torch.arange(side, device=image.device), pattern)
        halves += [half for half in (line < side / 2, line >= side / 2) if half.any()]  # one line has no second half
        ends = sorted({side // 2, *(side // 2 + max(1, side // parts) for parts in BANDS)})
        bands += [(line >= start) & (line < end) for start, end in pairwise(ends)]
    return halves, bands


@torch.inference_mode(False)
@torch.no_grad()
def _responses(model: nn.Module, image: Tensor, call: int, masks: list[Tensor], noises: int = 1) -> Tensor:
    """Return how much noise in each part of the image changes each token in each head: (parts, H, M)."""
    noise = spread_of(image) * noise_like(image.expand(noises, -1, -1, -1))
    changed = torch.cat([image + mask.to(image) * noise for mask in masks])
    values = values_of(model, torch.cat([image, changed]), call)
    return reduce(in_double(changes(values)), "(k noises) h m d -> k h m", "max", noises=noises)
