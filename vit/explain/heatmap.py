"""Overlays: the image in grey sets the lightness of a pixel, the map its colour, patch by patch.

Letters in the einops patterns: b batch, c channels, h w rows and columns of pixels, r s rows and columns of patches,
p q pixel rows and columns of a patch, k channels of OKLab.
"""

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce
from torch import Tensor

from vit.capture.checks.capturable import check_drawable
from vit.capture.parts.footprint import cell_edges, even_cells
from vit.support.checks import check_choice

LUMA = (0.299, 0.587, 0.114)  # perceived brightness of red, green and blue (ITU-R BT.601)
# Colours are points of OKLab (Ottosson 2020), in which equal distances look equal. The image moves the lightness alone,
# so that a value has the same hue and chroma on dark and on bright places; no colour leaves the range of screens.
DARKEST, CONTRAST = 0.36, 0.17  # lightness of black, and how much lighter white is
LIFT = 0.31  # how much lighter the largest value is than 0
CHROMA, FULL_CHROMA_AT = 0.115, 0.5  # 0 is grey, and from half of the largest value on, colours are full
UNSEEN = 0.25  # brightness of what the model did not see
HUES = (300, 450)  # degrees: from purple for 0 through red and orange to yellow for the largest value
TO_CONES = ((1, 0.3963377774, 0.2158037573), (1, -0.1055613458, -0.0638541728), (1, -0.0894841775, -1.2914855480))
TO_RGB = (
    (4.0767416621, -3.3077115913, 0.2309699292),
    (-1.2684380046, 2.6097574011, -0.3413193965),
    (-0.0041960863, -0.7034186147, 1.7076147010),
)

Scale = Literal["image", "common"]


def overlay(
    images: Tensor, maps: Tensor, *, cells: Tensor | None = None, scale: Scale = "image", smooth: bool = False
) -> Tensor:
    """Lay maps in colour over images in grey: (B, C, H, W), (B, rows, columns) -> (B, 3, H, W), in [0, 1].

    Each patch has one hue and chroma over exactly its pixels, on dark and on bright places of the image: grey for 0,
    then purple, red, orange, and yellow for the largest value. Pixels that the model never sees are dark and grey.

    >>> overlay(torch.rand(5, 3, 32, 32), torch.rand(5, 8, 8)).shape
    torch.Size([5, 3, 32, 32])

    Args:
        images: Float in [0, 1], or uint8, with any number of channels; 3 are red, green and blue.
        maps: Relevance of each patch, non-negative.
        cells: The patch that each pixel belongs to, (H, W), -1 for none: ``vit.capture.examine(model, images).cells``.
            None divides the image evenly, which is wrong if the model crops, pads or leaves a border.
        scale: Which value is yellow: the largest of each map ("image"), or the largest of all maps ("common"), so that
            their colours can be compared.
        smooth: Whether to interpolate between patches. This suggests a resolution that the map does not have.

    Raises:
        ValueError: If shapes do not fit, or values are out of range.
    """
    grey = grey_of(images)
    shares = shares_of_largest(maps, scale)
    if len(maps) != len(images):
        raise ValueError(f"{len(images)} images have {len(maps)} maps: give each image its own")
    (height, width), (rows, columns) = images.shape[-2:], maps.shape[-2:]
    if cells is None:
        if not smooth and (height % rows or width % columns):
            raise ValueError(
                f"images of {height} x {width} pixels cannot be divided into the {rows} x {columns} patches of the "
                "maps: give the images at the size that the model got, or the cells of its patches"
            )
        cells = even_cells((height, width), (rows, columns))
    check_cells(cells, images, maps)
    cells, seen = cells.to(shares.device), (cells >= 0).to(grey.device)
    if smooth:
        (top, bottom), (left, right) = ((edges.min(), edges.max()) for edges in cell_edges(cells, (rows, columns)))
        inside = F.interpolate(
            rearrange(shares, "b r s -> b 1 r s"), (int(bottom - top), int(right - left)), mode="bilinear"
        )
        shares = F.pad(inside[:, 0], (int(left), width - int(right), int(top), height - int(bottom)))
    else:
        shares = rearrange(shares, "b r s -> b (r s)")[:, cells.clamp(min=0)]
    return torch.where(seen, shade(grey, shares.to(grey.device)), UNSEEN * grey)


def check_cells(cells: Tensor, images: Tensor, maps: Tensor) -> None:
    """Raise a ValueError if cells are not those of the pixels of images (B, C, H, W) and the patches of maps."""
    (height, width), (rows, columns) = images.shape[-2:], maps.shape[-2:]
    if tuple(cells.shape) != (height, width) or not torch.equal(
        cells[cells >= 0].unique().cpu(), torch.arange(rows * columns)
    ):
        raise ValueError(
            f"cells of shape {tuple(cells.shape)} from {int(cells.min())} to {int(cells.max())} do not fit images of "
            f"{height} x {width} pixels and maps of {rows} x {columns} patches: give the cells of these images"
        )


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
    check_drawable(images)
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


def shade(grey: Tensor, shares: Tensor) -> Tensor:
    """Colour brightness by shares of the largest value, all in [0, 1]: (B, 1, H, W), (B, H, W) -> (B, 3, H, W)."""
    first, last = (math.radians(hue) for hue in HUES)
    hue, chroma = first + (last - first) * shares, CHROMA * (shares / FULL_CHROMA_AT).clamp(max=1)
    lightness = DARKEST + CONTRAST * rearrange(grey, "b 1 h w -> b h w") + LIFT * shares
    oklab = torch.stack([lightness, chroma * hue.cos(), chroma * hue.sin()], dim=1)
    to_cones, to_rgb = (torch.tensor(matrix).to(oklab) for matrix in (TO_CONES, TO_RGB))
    linear = einsum(einsum(oklab, to_cones, "b k h w, c k -> b c h w") ** 3, to_rgb, "b k h w, c k -> b c h w")
    return torch.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear.clamp(min=0) ** (1 / 2.4) - 0.055)


def grey_of(images: Tensor) -> Tensor:
    """Return the brightness of images: (B, C, H, W) -> float (B, 1, H, W)."""
    check_drawable(images)
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


def shares_of_largest(maps: Tensor, scale: Scale = "image") -> Tensor:
    """Divide maps by the largest value of each or of all: (B, rows, columns) -> float (B, rows, columns), in [0, 1]."""
    check_choice("scale", scale, get_args(Scale))
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
    # Without maps, there is no largest value.
    largest = reduce(maps, "b r s -> b 1 1" if scale == "image" or not len(maps) else "b r s -> 1 1 1", "max")
    return torch.where(largest > 0, maps / largest.clamp(min=torch.finfo(maps.dtype).tiny), 0.0)
