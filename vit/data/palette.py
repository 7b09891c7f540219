"""Images as numbers of colours: a palette learned from images, and the nearest colour of each pixel.

Letters in the einops patterns: b images, c channels, h w rows and columns of pixels, k colours.
"""

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce
from torch import Tensor

from vit.checks import check_positive_int

MOST_PIXELS = 100_000  # of which a palette is learned
SEED = 0  # of their choice and of k-means: the same images give the same palette


def shrunk(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Scale images, uint8 or float in [0, 1], to a size: (B, C, H, W) -> float in [0, 255], (B, C, h, w)."""
    pixels = images.float() * (1 if images.dtype == torch.uint8 else 255)
    if tuple(images.shape[-2:]) == tuple(size):
        return pixels
    return F.interpolate(pixels, size, mode="bilinear", antialias=True)


def learn_palette(images: Tensor, count: int) -> Tensor:
    """Learn the colours that represent images best, by k-means (Lloyd 1982): (B, C, H, W) -> (K, C), dark to bright.

    >>> palette = learn_palette(torch.tensor([0.0, 1.0, 9.0, 10.0, 10.0, 10.0]).reshape(1, 1, 2, 3), 2)
    >>> palette
    tensor([[0.5000],
            [9.7500]])

    Args:
        images: Images, float in [0, 255].
        count: Number of colours.

    Raises:
        ValueError: If the images have fewer different colours.
    """
    from sklearn.cluster import KMeans

    check_positive_int("palette_size", count, "16 is usual")
    pixels = rearrange(images, "b c h w -> (b h w) c")
    generator = torch.Generator().manual_seed(SEED)
    pixels = pixels[torch.randperm(len(pixels), generator=generator)[:MOST_PIXELS]]
    different = len(pixels.unique(dim=0))
    if different < count:
        raise ValueError(f"palette_size ({count}) is more than the {different} colours of the images: take fewer")
    found = KMeans(count, n_init=1, random_state=SEED).fit(pixels.numpy())
    palette = torch.from_numpy(found.cluster_centers_).float()
    return palette[reduce(palette, "k c -> k", "mean").argsort(stable=True)]


def quantise(images: Tensor, palette: Tensor) -> Tensor:
    """Return the number of the nearest colour of each pixel: (B, C, H, W), (K, C) -> (B, H, W)."""
    # |x - p|^2 without |x|^2, which is the same for all colours.
    products = einsum(images, palette, "b c h w, k c -> b h w k")
    return (reduce(palette**2, "k c -> k", "sum") - 2 * products).argmin(dim=-1)


def coloured(pixels: Tensor, palette: Tensor) -> Tensor:
    """Return the colours of numbers of colours: (B, H, W), (K, C) -> uint8 (B, C, H, W)."""
    return rearrange(palette[pixels].round().clamp(0, 255).to(torch.uint8), "b h w c -> b c h w")
