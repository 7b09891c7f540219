"""Image files: decoding, and batches of decoded images."""

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from PIL import ExifTags, Image
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from vit.data.bit_depth import eight_bits, has_more_than_eight_bits, is_nearly_black
from vit.data.formats import MAX_PIXELS, open_image
from vit.data.shard_files import Members

BICUBIC = Image.Resampling.BICUBIC
NAMED = 10  # unreadable files in a message; the others are counted
# The operation that turns an image of each EXIF orientation upright (EXIF 2.3, table 6). SIDEWAYS ones swap rows and
# columns.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)
# Notes on images that are read, but perhaps not as their owner expects.
FIRST_FRAME = "several frames or pages, of which the first is read"
NEARLY_BLACK = (
    "nearly black, or white where zero is white, as 12 bits in a file of 16 are (no value reaches 1/16 of the range; "
    "multiply them by 16)"
)
SUSPICIOUS = "read with a warning of Pillow, such as of a file that is cut: look whether it is whole"


def decode(
    path: Path,
    image_size: tuple[int, int] | None,
    in_channels: int,
    *,
    stretch: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> Tensor:
    """Read an image as uint8 (C, H, W), upright, scaled and centre-cropped to ``image_size`` (rows, columns) if given.

    ``in_channels`` is 3 for colour and 1 for grey. ``stretch`` scales the whole image, whatever its aspect ratio.
    Pixels of more than 8 bits are read by the rules of ``vit.data.bit_depth``; transparency is left out.

    Raises:
        ValueError: If the file is damaged, is in a format that is not read, or has more than ``max_pixels`` pixels; the
            message names it.
    """
    return decode_and_note(path, image_size, in_channels, stretch=stretch, max_pixels=max_pixels)[0]


def decode_and_note(
    path: Path,
    image_size: tuple[int, int] | None,
    in_channels: int,
    *,
    stretch: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> tuple[Tensor, list[str]]:
    """Return an image as ``decode`` does, and the notes on it, such as ``FIRST_FRAME``."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")  # by default Python shows each warning once, without the name of the file
        try:
            image, extent, orientation, notes = _load(path, image_size, "L" if in_channels == 1 else "RGB", max_pixels)
        except Exception as error:  # decoders raise errors of any kind at damaged files
            raise ValueError(f"cannot read image {path}: {message_of(error)}") from None
    if any(is_suspicious(warning.message) for warning in warned):
        notes.append(SUSPICIOUS)
    if image_size is not None:
        # Turning the small result takes less time than turning the photograph.
        size = image_size if orientation in SIDEWAYS else image_size[::-1]
        image = image.resize(size, BICUBIC, box=(0, 0, *extent)) if stretch else _fit(image, extent, size)
    if orientation in UPRIGHT:
        image = image.transpose(UPRIGHT[orientation])
    pixels = np.array(image)
    return torch.from_numpy(pixels[None] if in_channels == 1 else rearrange(pixels, "h w c -> c h w")), notes


def _load(
    path: Path, image_size: tuple[int, int] | None, mode: str, max_pixels: int
) -> tuple[Image.Image, tuple[float, float], int, list[str]]:
    """Return an image in ``mode``, the width and height that it fills, its EXIF orientation and notes on it."""
    with open_image(path, max_pixels) as file:
        extent = (file.width, file.height) if image_size is None else _reduce(file, max(image_size))
        notes = [FIRST_FRAME] if _has_several_frames(file) else []
        is_deep = has_more_than_eight_bits(file)
        file.load()
        orientation = file.getexif().get(ExifTags.Base.Orientation, 1)
        image = eight_bits(file)
        if is_deep and is_nearly_black(file):
            notes.append(NEARLY_BLACK)
        return image if image.mode == mode else image.convert(mode), extent, orientation, notes


def message_of(error: Exception) -> str:
    """Return the message of a decoder's error; of a system error, without its number and the name of the file."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def is_suspicious(warning: Warning | str) -> bool:
    """Return whether a warning of Pillow is about pixels; warnings about EXIF data are common in photographs."""
    is_of_code = isinstance(warning, (EncodingWarning, DeprecationWarning))
    return not is_of_code and not str(warning).startswith("Corrupt EXIF data")


def _has_several_frames(file: Image.Image) -> bool:
    """Return whether an image has several frames or pages; the previews in an MPO do not count."""
    try:
        return file.format != "MPO" and getattr(file, "is_animated", False)
    except Exception:  # a second frame that is damaged
        return True


def _reduce(file: Image.Image, side: int) -> tuple[float, float]:
    """Have a JPEG decoded at 1/2, 1/4 or 1/8 of its size if more than ``side`` pixels are left; return width, height.

    This takes at most half the time, and changes the scaled image by about a grey level on average. Width and height
    are fractions if a part of the last pixel is padding.
    """
    reduced = file.draft(None, (side + 1, side + 1))
    return reduced[1][2:] if reduced else file.size


def _fit(image: Image.Image, extent: tuple[float, float], size: tuple[int, int]) -> Image.Image:
    """Scale and centre-crop an image that fills ``extent``; sizes are width, height.

    ImageOps.fit does the same for whole pixels. It would take the padding of a reduced JPEG for a part of the image.
    """
    if image.size == size == extent:
        return image
    return image.resize(size, BICUBIC, box=seen_box(extent, size[::-1]))


def seen_box(
    extent: tuple[float, float],
    image_size: tuple[int, int],
    centre: tuple[int, int] | None = None,
    *,
    stretch: bool = False,
) -> tuple[float, float, float, float]:
    """Return the part of an upright image that is left once it is scaled to ``image_size`` and centre-cropped.

    >>> seen_box((640, 480), (256, 256), centre=(224, 224))
    (110.0, 30.0, 530.0, 450.0)

    Args:
        extent: Width and height of the image.
        image_size: Rows and columns that it is scaled to. What exceeds their aspect ratio is cut off at both ends.
        centre: Rows and columns that are kept of the scaled image; None keeps all.
        stretch: Whether the whole image is scaled, whatever its aspect ratio.

    Returns:
        Left, top, right and bottom in pixels of the image, which may be fractions.
    """
    (width, height), (rows, columns), ratio = extent, image_size, image_size[1] / image_size[0]
    fill_width, fill_height = (width, height) if stretch else (min(width, ratio * height), min(height, width / ratio))
    left, top = (width - fill_width) / 2, (height - fill_height) / 2
    if centre is None:
        return left, top, left + fill_width, top + fill_height
    across, down = fill_width / columns, fill_height / rows  # pixels of the image for each of the scaled one
    left, top = left + across * round((columns - centre[1]) / 2), top + down * round((rows - centre[0]) / 2)
    return left, top, left + across * centre[1], top + down * centre[0]


def centre_of(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the middle of an image that is at least as large: (C, H, W) -> (C, rows, columns).

    torchvision's ``center_crop`` does the same, but its import takes seconds.
    """
    (height, width), (rows, columns) = image.shape[1:], size
    top, left = round((height - rows) / 2), round((width - columns) / 2)
    return image[:, top : top + rows, left : left + columns]


def header_orientation(file: Image.Image) -> int:
    """Return the EXIF orientation of an opened image that its size does not yet take into account.

    Of a TIFF, Pillow turns the size when it opens the file, and the pixels when it decodes them.
    """
    return 1 if file.format == "TIFF" else file.getexif().get(ExifTags.Base.Orientation, 1)


def upright_size(path: Path, max_pixels: int = MAX_PIXELS) -> tuple[int, int, int]:
    """Return width and height of an image file once it is upright, and its EXIF orientation, 1 if it is stored upright.

    Raises:
        ValueError: If the file is damaged or not an image; the message names it.
    """
    try:
        with open_image(path, max_pixels) as file:
            orientation = header_orientation(file)
            width, height = file.size
    except Exception as error:  # decoders raise errors of any kind at damaged files
        raise ValueError(f"cannot read image {path}: {message_of(error)}") from None
    orientation = orientation if orientation in UPRIGHT else 1  # other values mean nothing
    return (height, width, orientation) if orientation in SIDEWAYS else (width, height, orientation)


def stored_size(image_size: tuple[int, int], crop_ratio: float) -> tuple[int, int]:
    """Return the size to scale images to, so that a centre crop of ``crop_ratio`` per side has ``image_size``.

    >>> stored_size((224, 224), 0.875)
    (256, 256)
    """
    rows, columns = (round(side / crop_ratio) for side in image_size)
    return rows, columns


# An image or its error message, its label, its index and the notes on it.
Item = tuple[Tensor | str, int | list[int] | list[float], int, list[str]]


@dataclass(eq=False)
class ImageFiles(Dataset):
    """Image files and their labels, decoded on access by ``decode``.

    Args:
        paths: The files, on a disk or in shards.
        labels: The class number of each, (N,), or a row of tokens, or of 0.0 and 1.0.
        image_size: Rows and columns that every image is scaled and cropped to.
        in_channels: 3 for colour, 1 for grey.
        centre: Rows and columns of the centre crop of a scaled image; None for the whole image.
        stretch: Whether whole images are scaled, whatever their aspect ratio.
        max_pixels: Most pixels of an image; files with more are not decoded.
        notes: Notes on decoded images, by file; filled by ``vit.data.decoded_cache``.
        unreadable: Messages about files that cannot be read, by file; filled likewise.
    """

    paths: list[Path] | Members
    labels: list[int] | np.ndarray | list[list[int]] | list[list[float]]
    image_size: tuple[int, int]
    in_channels: int
    centre: tuple[int, int] | None = None
    stretch: bool = False
    max_pixels: int = MAX_PIXELS
    notes: dict[Path, list[str]] = field(default_factory=dict)
    unreadable: dict[Path, str] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.paths)

    def __getitem__(self, index: int) -> Item:
        """Return an image (C, H, W) or its error message, its label, its index and the notes on it.

        Index -1 is a blank (padding).
        """
        if index < 0:
            blank = torch.zeros(self.in_channels, *(self.centre or self.image_size), dtype=torch.uint8)
            return blank, torch.full_like(torch.tensor(self.labels[0]), -1).tolist(), -1, []
        options = {"stretch": self.stretch, "max_pixels": self.max_pixels}
        try:
            image, notes = decode_and_note(self.paths[index], self.image_size, self.in_channels, **options)
        except ValueError as error:
            # Returned instead of raised, since a worker process would wrap the error in its traceback.
            return str(error), self.labels[index], int(index), []
        return centre_of(image, self.centre) if self.centre else image, self.labels[index], int(index), notes

    @property
    def names(self) -> list[str]:
        """The path of each file as text."""
        return self.paths.names if isinstance(self.paths, Members) else [str(path) for path in self.paths]

    def decode(self, indices: Tensor) -> "DecodedBatch":
        """Return the images at ``indices`` that can be read, and what is wrong with the others."""
        return collate_readable([self[index] for index in indices.tolist()])

    def subset(self, indices: Tensor) -> "ImageFiles":
        """Return the files at ``indices``."""
        return replace(self, paths=_take(self.paths, indices), labels=_take(self.labels, indices))

    def without(self, left_out: Collection[int]) -> "ImageFiles":
        """Return all files but those at the indices ``left_out``."""
        return self.subset(torch.tensor([index for index in range(len(self)) if index not in left_out]).long())


def _take(items: list | Members | np.ndarray, indices: Tensor) -> list | Members | np.ndarray:
    return [items[index] for index in indices.tolist()] if isinstance(items, list) else items[indices.numpy()]


@dataclass
class DecodedBatch:
    """The readable images of a batch, the error messages of unreadable files, and notes on others, both by index.

    Indices are a list: a worker process passes each tensor as a file of its own, which takes longer than short lists.
    """

    images: Tensor
    labels: Tensor
    indices: list[int]
    unreadable: dict[int, str]
    notes: dict[int, list[str]]

    def pin_memory(self) -> "DecodedBatch":
        """Copy images and labels to pinned memory, which is copied to a GPU asynchronously; DataLoader calls this."""
        return replace(self, images=self.images.pin_memory(), labels=self.labels.pin_memory())


def collate_readable(items: list[Item]) -> DecodedBatch:
    """Stack the readable images of a batch, and list the messages of the others."""
    readable = [item for item in items if not isinstance(item[0], str)]
    images, labels, indices, _ = zip(*readable, strict=True) if readable else ((), (), (), ())
    return DecodedBatch(
        # In a worker process, default_collate stacks into shared memory, which saves a copy.
        images=default_collate([*images]) if images else torch.empty(0),
        labels=torch.tensor(labels),
        indices=[*indices],
        unreadable={index: image for image, _, index, _ in items if isinstance(image, str)},
        notes={index: notes for _, _, index, notes in items if notes},
    )


def raise_unreadable(unreadable: Mapping[int, str]) -> None:
    """Raise a ValueError with the messages about unreadable files, by index, if there are any."""
    if unreadable:
        them, files = ("it", "the file") if len(unreadable) == 1 else ("them", "the files")
        raise ValueError(
            f"{'; '.join(name_unreadable(unreadable))}: replace or delete {files}, or leave {them} out by "
            "--data.skip_damaged true"
        )


def name_unreadable(unreadable: Mapping[int, str]) -> list[str]:
    """Return the messages about the first ten unreadable files, and one that counts the others."""
    messages = list(unreadable.values())
    others = len(messages) - NAMED
    return [*messages[:NAMED], *([f"and {others:,} more"] if others > 0 else [])]
