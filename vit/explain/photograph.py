"""A photograph as taken: which part of it a model sees, and its pixels at a size to look at."""

from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from vit.data.formats import MAX_PIXELS
from vit.data.image_files import BICUBIC, SIDEWAYS, UPRIGHT, decode, header_orientation, seen_box, upright_size
from vit.explain.inputs import Given, as_tensor, input_settings, name_of, upright
from vit.support.checks import check_positive_int

SMALLEST_SIDE = 384  # pixels; smaller photographs are enlarged when shown
LARGEST_SIDE = 1600  # pixels; larger ones are scaled down
LEAST_SIDE, MOST_SIDE = 200, 16_000  # pixels that may be asked for
REPEATED = 2  # times; from this enlargement on, pixels are repeated, because interpolated ones look like details


class Photograph(NamedTuple):
    """An image as taken, and the part of it that a model sees.

    Attributes:
        path: The file. For a PIL image, the name of the file that it was read from, or "PIL image".
        width: Pixels of a row, once the photograph stands upright.
        height: Pixels of a column.
        orientation: The EXIF orientation of the file, from 1 (stored upright) to 8.
        seen: Left, top, right and bottom of what the model sees, in pixels of the upright photograph.
        image: The PIL image; None if the file is read.
    """

    path: Path
    width: int
    height: int
    orientation: int
    seen: tuple[float, float, float, float]
    image: Image.Image | None = None


def locate(given: Given, model: nn.Module, max_pixels: int = MAX_PIXELS) -> Photograph:
    """Return the size of a photograph as taken, and the part of it that ``read_pixels`` gives to the model."""
    settings = input_settings(model)
    if isinstance(given, Image.Image):
        path, image = Path(name_of(given)), given
        orientation = header_orientation(given)
        width, height = given.size[::-1] if orientation in SIDEWAYS else given.size
        orientation = orientation if orientation in UPRIGHT else 1
    else:
        path, image = Path(given), None
        width, height, orientation = upright_size(path, max_pixels)
    seen = seen_box((width, height), settings.scaled_size, centre=settings.image_size, stretch=settings.stretch)
    return Photograph(path, width, height, orientation, seen, image)


def check_shown_size(size: int | None) -> None:
    """Raise a ValueError if photographs cannot be shown at a size, the pixels of their longer side."""
    if size is None:
        return
    check_positive_int("size", size, "it is the pixels of the longer side")
    if not LEAST_SIDE <= size <= MOST_SIDE:
        raise ValueError(f"size ({size}) must be from {LEAST_SIDE} to {MOST_SIDE}, pixels of the longer side")


def _decode(photograph: Photograph, size: tuple[int, int] | None, in_channels: int, max_pixels: int) -> Tensor:
    if photograph.image is None:
        return decode(photograph.path, size, in_channels, stretch=True, max_pixels=max_pixels)
    image = upright(photograph.image, in_channels)
    return as_tensor(image if size is None else image.resize(size[::-1], BICUBIC))


def read_shown(
    photograph: Photograph, max_pixels: int = MAX_PIXELS, *, size: int | None = None, in_channels: int = 1
) -> Tensor:
    """Read a photograph upright, at a size to look at: uint8 (in_channels, H, W), in grey or colours.

    Most photographs keep their pixels. A large one is scaled down until no side exceeds ``LARGEST_SIDE``. Each pixel of
    a small one is repeated until both sides have ``SMALLEST_SIDE``, or one would exceed ``LARGEST_SIDE``.

    Args:
        photograph: The photograph.
        max_pixels: Most pixels of a file.
        size: Pixels of the longer side, in place of these rules.
        in_channels: 1 for grey, 3 for colours.

    Raises:
        ValueError: If the file cannot be read, or the size is out of range.
    """
    longer, shorter = max(photograph.width, photograph.height), min(photograph.width, photograph.height)
    check_shown_size(size)
    if size is None:
        size = min(LARGEST_SIDE, longer * max(1, min(-(-SMALLEST_SIDE // shorter), LARGEST_SIDE // longer)))
    rows, columns = (max(1, round(size / longer * side)) for side in (photograph.height, photograph.width))
    if size < REPEATED * longer:
        return _decode(photograph, (rows, columns), in_channels, max_pixels)
    shown = _decode(photograph, None, in_channels, max_pixels)
    down, across = (
        torch.arange(many) * few // many for many, few in zip((rows, columns), shown.shape[1:], strict=True)
    )
    return shown[:, down][:, :, across]
