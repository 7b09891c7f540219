"""Measures how much a model depends on the positions of its patches: accuracy with other positions and at another size.

Letters in the einops patterns: b batch, n positions, d channels of a token.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from einops import reduce, repeat
from torch import Tensor

from vit.analysis.accuracy import accuracy
from vit.model.vision_transformer import VisionTransformer


def position_accuracies(
    model: VisionTransformer, images: Tensor, labels: Tensor, *, scale: float = 1.5, seed: int = 0, batch_size: int = 64
) -> dict[str, float]:
    """Measure the accuracy of a trained model with its positions, with wrong ones, and on larger images.

    "own": positions as trained. "mean": all patches have the mean position, so they form a set without an order.
    "shuffled": patches exchange their positions at random. "larger": images are ``scale`` times as large (see
    ``enlarged``), and the positions are resized to fit. Positions inside a mechanism, such as "positional", stay.

    >>> model = VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> sorted(position_accuracies(model, torch.randn(5, 3, 32, 32), torch.arange(5)))
    ['larger', 'mean', 'own', 'shuffled']

    Args:
        model: A model of this package, in eval mode.
        images: Images (B, C, H, W), normalised as the model expects.
        labels: The class of each image, (B,).
        scale: Size of the larger images, as a multiple of the original size.
        seed: Seed of the shuffled positions.
        batch_size: Number of images in one forward pass.

    Raises:
        ValueError: If the model is of another library, or adds no positions to the tokens.
    """
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"{type(model).__name__} is of another library: give a vit.VisionTransformer")
    if not model.pos_embed.any():
        raise ValueError(
            f"pos_embed {model.config['pos_embed']!r} adds no positions to the tokens, so there are none to exchange: "
            "give a model with 'learned' or 'sincos'"
        )
    patches = model.pos_embed[:, -model.patch_embed.num_patches :].detach()
    mean = repeat(reduce(patches, "1 n d -> d", "mean"), "d -> 1 n d", n=patches.shape[1])
    order = torch.randperm(patches.shape[1], generator=torch.Generator().manual_seed(seed))
    found = {"own": accuracy(model, images, labels, batch_size=batch_size)}
    for name, positions in (("mean", mean), ("shuffled", patches[:, order.to(patches.device)])):
        with _positions(model, positions):
            found[name] = accuracy(model, images, labels, batch_size=batch_size)
    larger = enlarged(images, scale, model.patch_embed.patch_stride)
    return found | {"larger": accuracy(model, larger, labels, batch_size=batch_size)}


def enlarged(images: Tensor, scale: float, patch_size: tuple[int, int]) -> Tensor:
    """Enlarge images to the nearest whole number of patches: (B, C, H, W) -> (B, C, height, width)."""
    sides = zip(images.shape[-2:], patch_size, strict=True)
    size = [max(1, round(side * scale / patch)) * patch for side, patch in sides]
    return F.interpolate(images, size=size, mode="bicubic", align_corners=False, antialias=True)


@contextmanager
def _positions(model: VisionTransformer, patches: Tensor) -> Iterator[None]:
    """Give the patches other positions inside the context, and restore their own after it."""
    own = model.pos_embed.data
    model.pos_embed.data = torch.cat([own[:, : own.shape[1] - patches.shape[1]], patches], dim=1)
    try:
        yield
    finally:
        model.pos_embed.data = own
