"""Random draws for each image that do not depend on the rest of the batch."""

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def draw_for_each(images: Tensor, shape: Sequence[int], *key: int, draw: Callable[..., Tensor] = torch.rand) -> Tensor:
    """Draw numbers for each image from its pixels and a key: (B, C, H, W) -> (B, *shape), on the images' device.

    An image gets the same numbers in any batch and at any place in it. Different images get different numbers. One seed
    per call would repeat the numbers in every batch, so a mean over many batches would be no better than over one.

    >>> images = torch.rand(3, 1, 4, 4)
    >>> drawn = draw_for_each(images, (2, 2), 0)
    >>> torch.equal(draw_for_each(images[1:], (2, 2), 0), drawn[1:])
    True
    """
    draws = []
    for pixels in images.detach().cpu().double():
        digest = hashlib.blake2b(repr(key).encode() + pixels.numpy().tobytes(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest) >> 1)
        draws.append(draw(tuple(shape), generator=generator))
    return torch.stack(draws).to(images)
