"""What RandAugment and TrivialAugment do to images, on whole batches: an operation and a strength for each image.

The operations are torchvision's, whose transforms apply one of them to a whole batch. Here there are three kinds, and
each takes all images with an operation of its kind at once, however many operations and strengths those are:

- a move fetches every pixel from another place, which is an affine map of its own;
- a table gives every grey level another one: 256 results for an image and channel, not one for each of its pixels;
- a blend moves every pixel away from the same one of another picture.

A kind gets its images in the order of its operations, with how many there are ``of_each``, and their strengths.
Letters in the einops patterns: b batch, c channels, h w rows and columns.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from vit.data.transfer import without_waiting

PIECE = 2**17  # pixels


def operate(images: Tensor, numbers: Tensor, strength: Tensor) -> Tensor:
    """Apply to each image an operation of its own, (B, C, H, W) -> (B, C, H, W).

    Args:
        images: uint8, with one or three channels.
        numbers: For each image the place of its operation in ``OPERATIONS``, (B,), on the CPU.
        strength: For each image, (B,), on the CPU. Tangents for a shear, shares of the image for a translation,
            degrees for a rotation, the factor less one for brightness, color, contrast and sharpness, bits for
            posterize, and for solarize the share of the levels that is inverted; of no meaning for the others.
    """
    numbers, order = numbers.sort()
    images, strength = images.index_select(0, without_waiting(order, images.device)), strength[order]
    per_kind = numbers.bincount(minlength=len(OPERATIONS)).split([len(names) for names in KINDS.values()])
    totals = [int(of_each.sum()) for of_each in per_kind]
    parts = zip(KINDS, per_kind, images.split(totals), strength.split(totals), strict=True)
    changed = [kind(some, of_each.tolist(), amounts) for kind, of_each, some, amounts in parts]
    return torch.cat(changed).index_select(0, without_waiting(order.argsort(), images.device))


def move(images: Tensor, of_each: list[int], strength: Tensor) -> Tensor:
    """Fetch each pixel from the nearest one to an affine map of its place; black comes in from outside."""
    _, c, h, w = images.shape
    # A row for each move, zero but for the images that it is drawn for.
    amounts = rearrange(torch.block_diag(*strength.split(of_each)), "move b -> move b 1 1")
    shear_x, shear_y, translate_x, translate_y, rotate = without_waiting(amounts, images.device)
    cos, sin = rotate.deg2rad().cos(), rotate.deg2rad().sin()
    # In pixels from the centre. Sheared about the left or upper border, and shifted by whole pixels, as in AutoAugment.
    x = torch.arange(w, device=images.device) - (w - 1) / 2
    y = rearrange(torch.arange(h, device=images.device) - (h - 1) / 2, "h -> h 1")
    from_x = (cos * x + (shear_x - sin) * y).add_(shear_x * h / 2 - (translate_x * w).trunc())
    from_y = ((shear_y + sin) * x + cos * y).add_(shear_y * w / 2 - (translate_y * h).trunc())
    # A border of one black pixel stands for all that lies outside.
    columns = from_x.add_((w - 1) / 2).round_().clamp_(-1, w)
    rows = from_y.add_((h - 1) / 2).round_().clamp_(-1, h)
    places = columns.long().add_(rows.long(), alpha=w + 2).add_(w + 3)
    places = repeat(places, "b h w -> b c (h w)", c=c)
    moved = rearrange(F.pad(images, (1, 1, 1, 1)), "b c h w -> b c (h w)").gather(2, places)
    return rearrange(moved, "b c (h w) -> b c h w", h=h)


def look_up(images: Tensor, of_each: list[int], strength: Tensor) -> Tensor:
    """Replace each pixel by what the table of its image and channel has for its grey level."""
    _, c, h, _ = images.shape
    strength = rearrange(without_waiting(strength, images.device), "b -> b 1 1")
    parts = zip(TABLES.values(), images.split(of_each), strength.split(of_each), strict=True)
    tables = torch.cat([table(some, amount).to(images.dtype).expand(-1, c, -1) for table, some, amount in parts])
    changed = torch.cat([table.gather(2, _pixels(some)) for some, table in in_pieces(images, tables)])
    return rearrange(changed, "b c (h w) -> b c h w", h=h)


def blend(images: Tensor, of_each: list[int], strength: Tensor) -> Tensor:
    """Move each image away from another picture, or towards it where the strength is below zero."""
    parts = zip(PICTURES.values(), images.split(of_each), strict=True)
    others = torch.cat([picture(some).expand_as(some) for picture, some in parts])
    strength = rearrange(without_waiting(strength, images.device), "b -> b 1 1 1")
    return _away(images, others, strength).to(images.dtype)


def keep(images: Tensor, of_each: list[int], strength: Tensor) -> Tensor:
    """Leave images as they are."""
    return images


def in_pieces(images: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut images, and what belongs to each of them, into pieces; on a GPU into a single one.

    A gather needs eight bytes for each pixel to say where from, and those of a piece stay in the cache of a CPU.
    """
    _, _, h, w = images.shape
    size = max(1, PIECE // (h * w)) if images.device.type == "cpu" else len(images)
    return zip(*(whole.split(size) for whole in (images, *others)), strict=True)


def _away(levels: Tensor, others: Tensor | float, strength: Tensor) -> Tensor:
    factor = 1 + strength
    # By way of int, since uint8 from float takes three times as long.
    return (levels * factor).add_(others * (1 - factor)).clamp_(0, 255).int()


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
    counts = torch.zeros(*pixels.shape[:2], 256, dtype=torch.int32, device=images.device)
    counts.scatter_add_(2, pixels, counts.new_ones(()).expand_as(pixels))
    below = counts.cumsum(dim=2, dtype=torch.int32) - counts
    brightest = counts.gather(2, rearrange(images.amax(dim=(2, 3)), "b c -> b c 1").long())
    step = (pixels.shape[2] - brightest) // 255
    spread = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, spread, _all_levels(images))


def _smooth(images: Tensor) -> Tensor:
    """Each pixel averaged with its eight neighbours, itself counted five times; those of the border as they are."""
    smooth = images.float()
    rows = (smooth[..., :-2, :] + smooth[..., 1:-1, :]).add_(smooth[..., 2:, :])
    neighbours = (rows[..., :-2] + rows[..., 1:-1]).add_(rows[..., 2:])
    inner = smooth[..., 1:-1, 1:-1]
    inner.copy_(neighbours.add_(inner, alpha=4).div_(13).round_())
    return smooth


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
KINDS = {move: MOVES, look_up: tuple(TABLES), blend: tuple(PICTURES), keep: ("identity",)}
OPERATIONS = [name for names in KINDS.values() for name in names]
