"""Overlays: maps in colour over images in grey, patch by patch.

Letters in the einops patterns: b batch, c channels, h w rows and columns of pixels, r s rows and columns of patches,
p q pixel rows and columns of a patch, k anchors of the colour map.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce, repeat
from torch import Tensor

from vit.capture.attention import check_pixels

# Inferno (van der Walt and Smith 2015) at even steps. Equal differences look equal, also to colour-blind readers, and
# zero is dark.
ANCHORS = bytes.fromhex("000004 160b39 420a68 6a176e 932667 bc3754 dd513a f37819 fca50a f6d746 fcffa4")
LUMA = (0.299, 0.587, 0.114)  # perceived brightness of red, green and blue (ITU-R BT.601)


def overlay(images: Tensor, maps: Tensor, *, opacity: float = 0.7, smooth: bool = False) -> Tensor:
    """Lay maps in colour over images in grey: (B, C, H, W), (B, rows, columns) -> (B, 3, H, W), in [0, 1].

    Each patch gets one flat colour over exactly its pixels. Colours run from black for 0 through red to pale yellow for
    the largest value of the image.

    >>> overlay(torch.rand(5, 3, 32, 32), torch.rand(5, 8, 8)).shape
    torch.Size([5, 3, 32, 32])

    Args:
        images: Float in [0, 1], or uint8, with any number of channels; 3 are red, green and blue.
        maps: Relevance of each patch, non-negative.
        opacity: Share of the colour in each pixel, from 0 to 1; the rest is the image.
        smooth: Whether to interpolate between patches. This suggests a resolution that the map does not have.

    Raises:
        ValueError: If shapes do not fit, or values are out of range.
    """
    grey = grey_of(images)
    shares = shares_of_largest(maps)
    if not 0 <= opacity <= 1:
        raise ValueError(f"opacity ({opacity}) must be from 0 (image only) to 1 (colour only)")
    if len(maps) != len(images):
        raise ValueError(f"{len(images)} images have {len(maps)} maps: give each image its own")
    (height, width), (rows, columns) = images.shape[-2:], maps.shape[-2:]
    if smooth:
        shares = F.interpolate(rearrange(shares, "b r s -> b 1 r s"), (height, width), mode="bilinear")[:, 0]
    elif height % rows or width % columns:
        raise ValueError(
            f"images of {height} x {width} pixels cannot be divided into the {rows} x {columns} patches of the maps: "
            "give the images at the size that the model got"
        )
    else:
        shares = repeat(shares, "b r s -> b (r p) (s q)", p=height // rows, q=width // columns)
    return (1 - opacity) * grey + opacity * color_of(shares.to(grey.device))


def displayable(images: Tensor, mean: Sequence[float] | None = None, std: Sequence[float] | None = None) -> Tensor:
    """Undo the normalisation of images for display: (B, C, H, W) -> (B, C, H, W), in [0, 1].

    >>> shown = displayable(torch.randn(5, 3, 32, 32))
    >>> shown.min().item(), shown.max().item()
    (0.0, 1.0)

    Args:
        images: Normalised images.
        mean: Channel means that were subtracted.
        std: Channel standard deviations that the images were divided by. If mean and std are None, the smallest value
            of each image becomes 0 and the largest 1.

    Raises:
        ValueError: If images are not (B, C, H, W), or mean and std do not fit the channels.
    """
    check_pixels(images)
    images = images.detach().float()
    if mean is None and std is None:
        low, high = (reduce(images, "b c h w -> b 1 1 1", how) for how in ("min", "max"))
        return (images - low) / (high - low).clamp(min=torch.finfo(images.dtype).tiny)
    if mean is None or std is None or not len(mean) == len(std) == images.shape[1]:
        raise ValueError(
            f"mean {mean} and std {std} do not fit images of {images.shape[1]} channels: give both, a number for each "
            "channel, or neither"
        )
    means, stds = (rearrange(torch.tensor(values).to(images), "c -> c 1 1") for values in (mean, std))
    return (images * stds + means).clamp(0, 1)


def color_of(shares: Tensor) -> Tensor:
    """Map numbers in [0, 1] to colours, linearly between the anchors: (B, H, W) -> (B, 3, H, W)."""
    anchors = rearrange(torch.tensor(list(ANCHORS)).to(shares) / 255, "(k c) -> k c", c=3)
    places = shares * (len(anchors) - 1)
    below = places.floor().long().clamp(max=len(anchors) - 2)
    colours = torch.lerp(anchors[below], anchors[below + 1], (places - below)[..., None])
    return rearrange(colours, "b h w c -> b c h w")


def grey_of(images: Tensor) -> Tensor:
    """Return the brightness of images: (B, C, H, W) -> float (B, 1, H, W)."""
    check_pixels(images)
    images = images.detach() / 255 if images.dtype == torch.uint8 else images.detach().float()
    low, high = (images.min().item(), images.max().item()) if images.numel() else (0.0, 0.0)
    if not (low >= 0 and high <= 1):
        raise ValueError(
            f"the images range from {low:.3g} to {high:.3g}, but must be in [0, 1] or uint8: give "
            "displayable(images, mean, std), or displayable(images) if mean and std are unknown"
        )
    channels = images.shape[1]
    weights = torch.tensor(LUMA if channels == 3 else [1 / channels] * channels).to(images)
    return rearrange(einsum(images, weights, "b c h w, c -> b h w"), "b h w -> b 1 h w")


def shares_of_largest(maps: Tensor) -> Tensor:
    """Divide maps by their largest value: (B, rows, columns) -> float (B, rows, columns), in [0, 1]."""
    if maps.ndim != 3:
        raise ValueError(f"maps have shape {tuple(maps.shape)}: give (batch, rows, columns) of patches")
    maps = maps.detach().float()
    if not maps.isfinite().all():
        raise ValueError("the maps contain NaN or infinity, which have no colour: look for a division by zero")
    if (maps < 0).any():
        raise ValueError(
            f"the smallest value of the maps is {maps.min().item():.3g}, but the colours start at 0: give "
            "maps.clamp(min=0), or (-maps).clamp(min=0) for the evidence against the class"
        )
    largest = reduce(maps, "b r s -> b 1 1", "max")
    return torch.where(largest > 0, maps / largest.clamp(min=torch.finfo(maps.dtype).tiny), 0.0)
