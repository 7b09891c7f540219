"""What RandAugment and TrivialAugment do to images, on whole batches: an operation and a strength for each image.

The operations are torchvision's, whose transforms apply one of them to a whole batch. Here there are three kinds, and
each is one pass over all images with an operation of its kind, however many operations and strengths those are:

- a move fetches every pixel from another place, which is an affine map of its own;
- a table gives every grey level another one: 256 results for an image and channel, not one for each of its pixels;
- a blend moves every pixel away from the same one of another picture.

Letters in the einops patterns: b batch, c channels, h w rows and columns.
"""

from collections.abc import Iterator
from itertools import groupby

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from vit.data.transfer import without_waiting


def operate(images: Tensor, names: list[str], strength: Tensor) -> Tensor:
    """Apply to each image the operation of its name, (B, C, H, W) -> (B, C, H, W).

    Args:
        images: uint8, with one or three channels.
        names: For each image one of ``OPERATIONS``.
        strength: For each image, (B,), on the CPU. Tangents for a shear, shares of the image for a translation,
            degrees for a rotation, the factor less one for brightness, color, contrast and sharpness, bits for
            posterize, and for solarize the share of the levels that is inverted; of no meaning for the others.
    """
    numbers = {name: number for number, name in enumerate(OPERATIONS)}
    order = sorted(range(len(names)), key=lambda image: numbers[names[image]])
    changed = []
    for kind, same in groupby(order, key=lambda image: OPERATIONS[names[image]]):
        rows = [*same]
        chosen = images.index_select(0, without_waiting(torch.tensor(rows), images.device))
        changed.append(kind(chosen, [names[row] for row in rows], strength[rows]))
    return torch.cat(changed).index_select(0, without_waiting(torch.tensor(order).argsort(), images.device))


def move(images: Tensor, names: list[str], strength: Tensor) -> Tensor:
    """Fetch each pixel from the nearest one to an affine map of its place; black comes in from outside."""
    _, c, h, w = images.shape
    drawn = torch.eye(len(MOVES))[[MOVES.index(name) for name in names]]
    amounts = rearrange(drawn * rearrange(strength, "b -> b 1"), "b move -> move b 1 1")
    shear_x, shear_y, translate_x, translate_y, rotate = without_waiting(amounts, images.device)
    cos, sin = rotate.deg2rad().cos(), rotate.deg2rad().sin()
    # In pixels from the centre. Sheared about the left or upper border, and shifted by whole pixels, as in AutoAugment.
    x = torch.arange(w, device=images.device) - (w - 1) / 2
    y = rearrange(torch.arange(h, device=images.device) - (h - 1) / 2, "h -> h 1")
    from_x = cos * x + (shear_x - sin) * y + (shear_x * h / 2 - (translate_x * w).trunc())
    from_y = (shear_y + sin) * x + cos * y + (shear_y * w / 2 - (translate_y * h).trunc())
    # A border of one black pixel stands for all that lies outside.
    columns = (from_x + (w - 1) / 2).round().clamp(-1, w).int() + 1
    rows = (from_y + (h - 1) / 2).round().clamp(-1, h).int() + 1
    places = repeat((rows * (w + 2) + columns).long(), "b h w -> b c (h w)", c=c)
    moved = rearrange(F.pad(images, (1, 1, 1, 1)), "b c h w -> b c (h w)").gather(2, places)
    return rearrange(moved, "b c (h w) -> b c h w", h=h)


def look_up(images: Tensor, names: list[str], strength: Tensor) -> Tensor:
    """Replace each pixel by what the table of its image and channel has for its grey level."""
    _, c, h, _ = images.shape
    strength = rearrange(without_waiting(strength, images.device), "b -> b 1 1")
    tables = [TABLES[name](images[same], strength[same]).expand(-1, c, -1) for name, same in _runs(names)]
    changed = torch.cat(tables).to(images.dtype).gather(2, _pixels(images))
    return rearrange(changed, "b c (h w) -> b c h w", h=h)


def blend(images: Tensor, names: list[str], strength: Tensor) -> Tensor:
    """Move each image away from another picture, or towards it where the strength is below zero."""
    others = torch.cat([PICTURES[name](images[same]).expand_as(images[same]) for name, same in _runs(names)])
    strength = rearrange(without_waiting(strength, images.device), "b -> b 1 1 1")
    return _away(images, others, strength).to(images.dtype)


def keep(images: Tensor, names: list[str], strength: Tensor) -> Tensor:
    """Leave images as they are."""
    return images


def _runs(names: list[str]) -> Iterator[tuple[str, slice]]:
    """Each name, and from where to where it stands.

    >>> [*_runs(["posterize", "posterize", "equalize"])]
    [('posterize', slice(0, 2, None)), ('equalize', slice(2, 3, None))]
    """
    stop = 0
    for name, same in groupby(names):
        start, stop = stop, stop + len([*same])
        yield name, slice(start, stop)


def _away(levels: Tensor, others: Tensor | float, strength: Tensor) -> Tensor:
    factor = 1 + strength
    # By way of int, since uint8 from float takes three times as long.
    return (levels * factor + others * (1 - factor)).clamp(0, 255).int()


def _pixels(images: Tensor) -> Tensor:
    return rearrange(images, "b c h w -> b c (h w)").long()


def _all_levels(images: Tensor) -> Tensor:
    return torch.arange(256, device=images.device)


def _brightness(images: Tensor, strength: Tensor) -> Tensor:
    return _away(_all_levels(images), 0.0, strength)


def _contrast(images: Tensor, strength: Tensor) -> Tensor:
    grey = rearrange(tv.rgb_to_grayscale(images), "b 1 h w -> b 1 (h w)")
    return _away(_all_levels(images), grey.float().mean(dim=2, keepdim=True), strength)


def _posterize(images: Tensor, strength: Tensor) -> Tensor:
    dropped_bits = strength.round().int()
    return _all_levels(images) & (255 >> dropped_bits << dropped_bits)


def _solarize(images: Tensor, strength: Tensor) -> Tensor:
    levels = _all_levels(images)
    return torch.where(levels >= 255 * (1 - strength), 255 - levels, levels)


def _autocontrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch the levels of each channel, so that its darkest is 0 and its brightest 255."""
    pixels = rearrange(images, "b c h w -> b c (h w)")
    darkest, brightest = (extreme.float() for extreme in (pixels.amin(2, keepdim=True), pixels.amax(2, keepdim=True)))
    levels = _all_levels(images)
    stretched = ((levels - darkest) / ((brightest - darkest) * (1 / 255))).clamp(0, 255).int()
    return torch.where(brightest > darkest, stretched, levels)


def _equalize(images: Tensor, _: Tensor) -> Tensor:
    """Spread the levels of each channel so that each has as many pixels below it as a level of noise, as PIL does."""
    pixels = _pixels(images)
    counts = torch.zeros(*pixels.shape[:2], 256, dtype=torch.long, device=images.device)
    counts.scatter_add_(2, pixels, torch.ones_like(pixels))
    below = counts.cumsum(dim=2) - counts
    brightest = counts.gather(2, pixels.amax(dim=2, keepdim=True))
    step = (pixels.shape[2] - brightest) // 255
    spread = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, spread, _all_levels(images))


def _smooth(images: Tensor) -> Tensor:
    """Each pixel averaged with its eight neighbours, itself counted five times; those of the border as they are."""
    smooth = images.short()
    rows = smooth[..., :-2, :] + smooth[..., 1:-1, :] + smooth[..., 2:, :]
    neighbours = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    inner = smooth[..., 1:-1, 1:-1]
    inner.copy_(((neighbours + 4 * inner) / 13).round())
    return smooth.to(images.dtype)


MOVES = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
TABLES = {
    "brightness": _brightness,
    "contrast": _contrast,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
}
PICTURES = {"color": tv.rgb_to_grayscale, "sharpness": _smooth}
OPERATIONS = {
    **dict.fromkeys(MOVES, move),
    **dict.fromkeys(TABLES, look_up),
    **dict.fromkeys(PICTURES, blend),
    "identity": keep,
}
