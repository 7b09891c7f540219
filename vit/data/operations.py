"""The operations of RandAugment and TrivialAugment on whole batches, with an operation and a strength for each image.

torchvision's transforms apply one operation to a whole batch. Here all operations of a kind are computed at once,
whatever their number. There are three kinds, besides the identity:

- an affine transform (shear, translation, rotation) gathers each pixel from another place;
- a lookup table maps each grey level to another: 256 results per image and channel, however large the image;
- a blend mixes or extrapolates between each image and another picture made of it.

The function of a kind takes its images, sorted by operation, the number of images of each operation (``counts``), and
the strength of each image. Letters in the einops patterns: b batch, c channels, h w rows and columns.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from vit.data.device_copy import copy_async

CHUNK_PIXELS = 2**17


def apply_operations(images: Tensor, operations: Tensor, strengths: Tensor) -> Tensor:
    """Apply an operation to each image: (B, C, H, W) -> (B, C, H, W).

    Args:
        images: uint8, with one or three channels.
        operations: Index in ``OPERATIONS`` of the operation of each image, (B,), on the CPU.
        strengths: Strength of the operation of each image, (B,), on the CPU: the tangent of the angle for a shear, the
            share of the image for a translation, degrees for a rotation, the factor minus one for brightness, color,
            contrast and sharpness, bits for posterize, the share of inverted levels for solarize; else ignored.
    """
    operations, order = operations.sort()
    images, strengths = images.index_select(0, copy_async(order, images.device)), strengths[order]
    per_kind = operations.bincount(minlength=len(OPERATIONS)).split([len(names) for names in KINDS.values()])
    totals = [int(counts.sum()) for counts in per_kind]
    parts = zip(KINDS, per_kind, images.split(totals), strengths.split(totals), strict=True)
    changed = [kind(part, counts.tolist(), strength) for kind, counts, part, strength in parts]
    return torch.cat(changed).index_select(0, copy_async(order.argsort(), images.device))


def transform_affine(images: Tensor, counts: list[int], strengths: Tensor) -> Tensor:
    """Shear, translate and rotate images: gather the pixel nearest to each source position, black outside."""
    _, c, h, w = images.shape
    # One row per affine operation, zero except for the images of this operation.
    per_operation = rearrange(torch.block_diag(*strengths.split(counts)), "operation b -> operation b 1 1")
    shear_x, shear_y, translate_x, translate_y, rotate = copy_async(per_operation, images.device)
    cos, sin = rotate.deg2rad().cos(), rotate.deg2rad().sin()
    # Pixels from the centre. As in AutoAugment, shears keep the upper or left border, translations are whole pixels.
    x = torch.arange(w, device=images.device) - (w - 1) / 2
    y = rearrange(torch.arange(h, device=images.device) - (h - 1) / 2, "h -> h 1")
    from_x = (cos * x + (shear_x - sin) * y).add_(shear_x * h / 2 - (translate_x * w).trunc())
    from_y = ((shear_y + sin) * x + cos * y).add_(shear_y * w / 2 - (translate_y * h).trunc())
    # One pixel of black padding represents everything outside.
    columns = from_x.add_((w - 1) / 2).round_().clamp_(-1, w)
    rows = from_y.add_((h - 1) / 2).round_().clamp_(-1, h)
    indices = columns.long().add_(rows.long(), alpha=w + 2).add_(w + 3)
    indices = repeat(indices, "b h w -> b c (h w)", c=c)
    gathered = rearrange(F.pad(images, (1, 1, 1, 1)), "b c h w -> b c (h w)").gather(2, indices)
    return rearrange(gathered, "b c (h w) -> b c h w", h=h)


def apply_lookup_table(images: Tensor, counts: list[int], strengths: Tensor) -> Tensor:
    """Map the grey levels of each image and channel by a table of 256 entries."""
    _, c, h, _ = images.shape
    strengths = rearrange(copy_async(strengths, images.device), "b -> b 1 1")
    parts = zip(LOOKUP_TABLES.values(), images.split(counts), strengths.split(counts), strict=True)
    tables = torch.cat([table(part, strength).to(images.dtype).expand(-1, c, -1) for table, part, strength in parts])
    changed = torch.cat([table.gather(2, _pixels(chunk)) for chunk, table in split_for_cache(images, tables)])
    return rearrange(changed, "b c (h w) -> b c h w", h=h)


def blend(images: Tensor, counts: list[int], strengths: Tensor) -> Tensor:
    """Extrapolate each image away from its degenerate picture, or mix the two if the strength is negative."""
    parts = zip(DEGENERATE.values(), images.split(counts), strict=True)
    degenerate = torch.cat([picture(part).expand_as(part) for picture, part in parts])
    strengths = rearrange(copy_async(strengths, images.device), "b -> b 1 1 1")
    return _blend_levels(images, degenerate, strengths).to(images.dtype)


def identity(images: Tensor, counts: list[int], strengths: Tensor) -> Tensor:
    """Return the images unchanged."""
    return images


def split_for_cache(images: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split images and other tensors along the batch into chunks whose gather indices fit the CPU's cache.

    A gather needs an index of eight bytes per pixel. On a GPU there is a single chunk.
    """
    _, _, h, w = images.shape
    size = max(1, CHUNK_PIXELS // (h * w)) if images.device.type == "cpu" else len(images)
    return zip(*(tensor.split(size) for tensor in (images, *others)), strict=True)


def _blend_levels(levels: Tensor, degenerate: Tensor | float, strengths: Tensor) -> Tensor:
    factor = 1 + strengths
    # Convert to int first: float to uint8 takes three times as long.
    return (levels * factor).add_(degenerate * (1 - factor)).clamp_(0, 255).int()


def _pixels(images: Tensor) -> Tensor:
    return rearrange(images, "b c h w -> b c (h w)").long()


def _all_levels(images: Tensor) -> Tensor:
    return torch.arange(256, device=images.device)


def _brightness(images: Tensor, strengths: Tensor) -> Tensor:
    return _blend_levels(_all_levels(images), 0.0, strengths)


def _contrast(images: Tensor, strengths: Tensor) -> Tensor:
    grey = rearrange(tv.rgb_to_grayscale(images), "b 1 h w -> b 1 (h w)")
    return _blend_levels(_all_levels(images), grey.float().mean(dim=2, keepdim=True), strengths)


def _posterize(images: Tensor, strengths: Tensor) -> Tensor:
    dropped_bits = strengths.round().int()
    return _all_levels(images) & (255 >> dropped_bits << dropped_bits)


def _solarize(images: Tensor, strengths: Tensor) -> Tensor:
    levels = _all_levels(images)
    return torch.where(levels >= 255 * (1 - strengths), 255 - levels, levels)


def _autocontrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch the levels of each channel to the range from 0 to 255."""
    pixels = rearrange(images, "b c h w -> b c (h w)")
    darkest, brightest = (extreme.float() for extreme in (pixels.amin(2, keepdim=True), pixels.amax(2, keepdim=True)))
    levels = _all_levels(images)
    stretched = ((levels - darkest) / ((brightest - darkest) * (1 / 255))).clamp(0, 255).int()
    return torch.where(brightest > darkest, stretched, levels)


def _equalize(images: Tensor, _: Tensor) -> Tensor:
    """Map the levels of each channel so that their histogram becomes as uniform as possible, as PIL does."""
    pixels = _pixels(images)
    counts = torch.zeros(*pixels.shape[:2], 256, dtype=torch.int32, device=images.device)
    counts.scatter_add_(2, pixels, counts.new_ones(()).expand_as(pixels))
    below = counts.cumsum(dim=2, dtype=torch.int32) - counts
    brightest = counts.gather(2, rearrange(images.amax(dim=(2, 3)), "b c -> b c 1").long())
    step = (pixels.shape[2] - brightest) // 255
    spread = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, spread, _all_levels(images))


def _smooth(images: Tensor) -> Tensor:
    """Average each pixel, with weight five, with its eight neighbours; pixels of the border stay unchanged."""
    smooth = images.float()
    rows = (smooth[..., :-2, :] + smooth[..., 1:-1, :]).add_(smooth[..., 2:, :])
    neighbours = (rows[..., :-2] + rows[..., 1:-1]).add_(rows[..., 2:])
    inner = smooth[..., 1:-1, 1:-1]
    inner.copy_(neighbours.add_(inner, alpha=4).div_(13).round_())
    return smooth


AFFINE = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
LOOKUP_TABLES = {
    "brightness": _brightness,
    "contrast": _contrast,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
}
# The picture at factor 0 of each blend, which is called degenerate in PIL.
DEGENERATE = {"color": tv.rgb_to_grayscale, "sharpness": _smooth}
KINDS = {
    transform_affine: AFFINE,
    apply_lookup_table: tuple(LOOKUP_TABLES),
    blend: tuple(DEGENERATE),
    identity: ("identity",),
}
OPERATIONS = [name for names in KINDS.values() for name in names]
