"""Sizes and channels of image files, from their headers; they decide the size and channels of the model's input."""

import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vit.data.formats import MAX_PIXELS, open_image
from vit.data.image_files import SIDEWAYS, header_orientation, message_of

MOST_HEADERS = 2000  # of more files, an evenly spaced sample is read
GREY_MODES = {"1", "L", "I", "I;16", "I;16B", "F", "LA"}
GREY_SHARE = 0.95  # if this share of the files is grey, the others count as exceptions
# Sides of square inputs. 64 pixels are 256 tokens with the smallest usual patches (4 pixels); larger inputs take long.
SIDES = (64, 48, 32, 24, 16, 8)


@dataclass
class Survey:
    """Sizes and channels of the images of a data set.

    Args:
        sizes: Rows and columns of each image, upright.
        in_channels: 1 if nearly all images are grey, else 3.
        coloured: The files in colour, if nearly all are grey.
    """

    sizes: list[tuple[int, int]]
    in_channels: int
    coloured: list[Path] = field(default_factory=list)

    @property
    def image_size(self) -> tuple[int, int]:
        """Rows and columns of the model's input: those of the images, if all are equal and at most 64.

        Otherwise a square, with the largest usual side that is at most the median of the shorter sides.
        """
        if len(set(self.sizes)) == 1 and max(self.sizes[0]) <= SIDES[0]:
            return self.sizes[0]
        side = next((side for side in SIDES if side <= self.median), self.median)
        return side, side

    @property
    def median(self) -> int:
        """The median of the shorter sides."""
        return statistics.median_low(min(size) for size in self.sizes)

    def __str__(self) -> str:
        """Return the sizes in words."""
        sides = sorted(min(size) for size in self.sizes)
        return (
            f"{len(sides):,} images have shorter sides of {sides[0]:,} to {sides[-1]:,} pixels, median {self.median:,}"
        )


def survey(paths: Sequence[Path], max_pixels: int = MAX_PIXELS) -> Survey:
    """Read the headers of many of the files, without decoding the images; those above ``max_pixels`` do not count.

    Raises:
        ValueError: If none of the files is an image.
    """
    step = -(-len(paths) // MOST_HEADERS)
    headers = {index: _read_header(paths[index], max_pixels) for index in range(0, len(paths), step)}
    readable = {index: header for index, header in headers.items() if not isinstance(header, str)}
    if not readable:
        raise ValueError(
            f"cannot read any of the {len(paths):,} image files, such as {paths[0]}: are they images? ({headers[0]})"
        )
    sizes, grey = zip(*readable.values(), strict=True)
    if sum(grey) < GREY_SHARE * len(grey):
        return Survey([*sizes], in_channels=3)
    coloured = [paths[index] for index, is_grey in zip(readable, grey, strict=True) if not is_grey]
    return Survey([*sizes], in_channels=1, coloured=coloured)


def _read_header(path: Path, max_pixels: int) -> tuple[tuple[int, int], bool] | str:
    """Return the upright size of an image and whether it is grey, or why it cannot be read."""
    try:
        with warnings.catch_warnings(action="ignore"), open_image(path, max_pixels) as file:  # the decoder notes them
            columns, rows = file.size
            # getexif decodes a whole PNG if no EXIF block comes before the pixels, so we ignore one behind them.
            has_exif = file.format != "PNG" or "exif" in file.info
            is_sideways = has_exif and header_orientation(file) in SIDEWAYS
            return (columns, rows) if is_sideways else (rows, columns), file.mode in GREY_MODES
    except Exception as error:  # of any kind, as in the decoder
        return message_of(error)
