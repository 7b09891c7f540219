"""Images as numbers of colours or small patches: learns a palette from images, and finds its nearest entries.

Letters in the einops patterns: b images, c channels, h w rows and columns of tokens, p q those of the pixels in a
patch, k entries of the palette, d numbers of an entry.
"""

import math

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce
from torch import Tensor

from vit.support.checks import check_positive_int

MOST_PATCHES = 100_000  # from which a palette is learned
SEED = 0  # of their choice and of k-means: the same images give the same palette
STARTS = 10  # of k-means, of which the best palette is taken


def resize_images(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Scale images, uint8 or float in [0, 1], to a size: (B, C, H, W) -> float in [0, 255], (B, C, h, w)."""
    pixels = images.float() * (1 if images.dtype == torch.uint8 else 255)
    if tuple(images.shape[-2:]) == tuple(size):
        return pixels
    return F.interpolate(pixels, size, mode="bilinear", antialias=True)


def learn_palette(images: Tensor, count: int, patch_size: int = 1) -> Tensor:
    """Learn the patches that represent images best, by k-means (Lloyd 1982): (B, C, H, W) -> (K, C P P).

    They are sorted from dark to bright. Patches of one pixel are colours. The distances are computed in float64, as
    rounding decides in float32 which patches a start ends with: each CPU would have a palette of its own.

    >>> learn_palette(torch.tensor([0.0, 1.0, 9.0, 10.0, 10.0, 10.0]).reshape(1, 1, 2, 3), 2)
    tensor([[0.5000],
            [9.7500]])

    Args:
        images: Images, float in [0, 255].
        count: Number of patches.
        patch_size: Rows and columns of a patch in pixels.

    Raises:
        ValueError: If the images have fewer different patches.
    """
    from sklearn.cluster import KMeans

    check_positive_int("palette_size", count, "16 is usual")
    patches = rearrange(images, "b c (h p) (w q) -> (b h w) (c p q)", p=patch_size, q=patch_size)
    generator = torch.Generator().manual_seed(SEED)
    patches = patches[torch.randperm(len(patches), generator=generator)[:MOST_PATCHES]]
    different, times = patches.unique(dim=0, return_counts=True)
    if len(different) < count:
        kind = "colours" if patch_size == 1 else "patches"
        raise ValueError(f"palette_size ({count}) is more than the {len(different)} {kind} of the images: take fewer")
    means = KMeans(count, n_init=STARTS, random_state=SEED)
    found = means.fit(different.double().numpy(), sample_weight=times.double().numpy())
    palette = torch.from_numpy(found.cluster_centers_).float()
    return palette[reduce(palette, "k d -> k", "mean").argsort(stable=True)]


def quantise(images: Tensor, palette: Tensor) -> Tensor:
    """Return the number of the nearest entry of a palette for each patch: (B, C, H, W), (K, D) -> (B, h, w)."""
    size = _patch_size(palette, images.shape[1])
    patches = rearrange(images, "b c (h p) (w q) -> b h w (c p q)", p=size, q=size)
    # |x - p|^2 without |x|^2, which is the same for all entries.
    products = einsum(patches, palette, "b h w d, k d -> b h w k")
    return (reduce(palette**2, "k d -> k", "sum") - 2 * products).argmin(dim=-1)


def dequantise(numbers: Tensor, palette: Tensor, in_channels: int) -> Tensor:
    """Return the images that numbers of a palette's entries stand for: (B, h, w), (K, D) -> uint8 (B, C, H, W)."""
    size = _patch_size(palette, in_channels)
    patches = palette[numbers].round().clamp(0, 255).to(torch.uint8)
    return rearrange(patches, "b h w (c p q) -> b c (h p) (w q)", c=in_channels, p=size)


def _patch_size(palette: Tensor, in_channels: int) -> int:
    return math.isqrt(palette.shape[1] // in_channels)
