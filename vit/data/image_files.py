"""Image files: search, decoding, and batches of decoded images."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms.v2 import functional as tv

# The errors of Pillow for a damaged file and for a file that is not an image.
UNREADABLE = (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError)
BICUBIC = Image.Resampling.BICUBIC
NAMED = 10  # unreadable files in a message; the others are counted
# What turns each EXIF orientation upright (EXIF 2.3, table 6); SIDEWAYS ones swap rows and columns.
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
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


def image_files_below(root: Path) -> list[Path]:
    """Return the image files below a folder, by their suffix, sorted."""
    return [file for file in find_files(root) if file.suffix.lower() in IMAGE_SUFFIXES]


def find_files(root: Path) -> list[Path]:
    """Return all files below a folder except hidden ones, sorted by path."""
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )


def decode(path: Path, image_size: tuple[int, int] | None, in_channels: int, *, stretch: bool = False) -> Tensor:
    """Read an image as uint8 (C, H, W), upright, scaled and centre-cropped to ``image_size`` (rows, columns) if given.

    ``in_channels`` is 3 for colour and 1 for grey. ``stretch`` scales the whole image, whatever its aspect ratio.

    Raises:
        ValueError: If the file is damaged or not an image; the message names it.
    """
    mode = "L" if in_channels == 1 else "RGB"
    try:
        with Image.open(path) as file:
            extent = (file.width, file.height) if image_size is None else _reduce(file, max(image_size))
            file.load()
            orientation = file.getexif().get(ExifTags.Base.Orientation, 1)
            image = _eight_bit(file)
            image = image if image.mode == mode else image.convert(mode)
    except UNREADABLE as error:
        reason = "it is no image" if isinstance(error, UnidentifiedImageError) else str(error)
        raise ValueError(f"cannot read image {path}: {reason}") from None
    if image_size is not None:
        # Turning the small result takes less time than turning the photograph.
        size = image_size if orientation in SIDEWAYS else image_size[::-1]
        image = image.resize(size, BICUBIC, box=(0, 0, *extent)) if stretch else _fit(image, extent, size)
    if orientation in UPRIGHT:
        image = image.transpose(UPRIGHT[orientation])
    pixels = np.array(image)
    return torch.from_numpy(pixels[None] if in_channels == 1 else rearrange(pixels, "h w c -> c h w"))


def _reduce(file: Image.Image, side: int) -> tuple[float, float]:
    """Have a JPEG decoded at 1/2, 1/4 or 1/8 of its size if more than ``side`` pixels are left; return width, height.

    This takes at most half the time, and changes the scaled image by about a grey level on average. Width and height
    are fractions if a part of the last pixel is padding.
    """
    reduced = file.draft(None, (side + 1, side + 1))
    return reduced[1][2:] if reduced else file.size


def _fit(image: Image.Image, extent: tuple[float, float], size: tuple[int, int]) -> Image.Image:
    """Scale and centre-crop an image that fills ``extent``, as ImageOps.fit does; sizes are width, height."""
    if image.size == size == extent:
        return image
    return image.resize(size, BICUBIC, box=seen_box(extent, size[::-1]))


def seen_box(
    extent: tuple[float, float], image_size: tuple[int, int], centre: tuple[int, int] | None = None
) -> tuple[float, float, float, float]:
    """Return the part of an upright image that is left once it is scaled to ``image_size`` and centre-cropped.

    >>> seen_box((640, 480), (256, 256), centre=(224, 224))
    (110.0, 30.0, 530.0, 450.0)

    Args:
        extent: Width and height of the image.
        image_size: Rows and columns that it is scaled to. What exceeds their aspect ratio is cut off at both ends.
        centre: Rows and columns that are kept of the scaled image; None keeps all.

    Returns:
        Left, top, right and bottom in pixels of the image, which may be fractions.
    """
    (width, height), (rows, columns), ratio = extent, image_size, image_size[1] / image_size[0]
    fill_width, fill_height = min(width, ratio * height), min(height, width / ratio)
    left, top = (width - fill_width) / 2, (height - fill_height) / 2
    if centre is None:
        return left, top, left + fill_width, top + fill_height
    across, down = fill_width / columns, fill_height / rows  # pixels of the image in one of the scaled image
    left, top = left + across * round((columns - centre[1]) / 2), top + down * round((rows - centre[0]) / 2)
    return left, top, left + across * centre[1], top + down * centre[0]


def upright_size(path: Path) -> tuple[int, int, int]:
    """Return width and height of an image file as it stands upright, and its EXIF orientation: 1 if it has no turn.

    Raises:
        ValueError: If the file is damaged or not an image; the message names it.
    """
    try:
        with Image.open(path) as file:
            orientation = file.getexif().get(ExifTags.Base.Orientation, 1)
            width, height = file.size
    except UNREADABLE as error:
        raise ValueError(f"cannot read image {path}: {error}") from None
    orientation = orientation if orientation in UPRIGHT else 1  # other values mean nothing, and turn nothing
    return (height, width, orientation) if orientation in SIDEWAYS else (width, height, orientation)


def _eight_bit(image: Image.Image) -> Image.Image:
    """Convert the modes that Pillow would clip or warn about: 16-bit grey, and palettes with transparency."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image) // 257).clip(0, 255).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA")
    return image


def stored_size(image_size: tuple[int, int], crop_ratio: float) -> tuple[int, int]:
    """Return the size to which images are scaled, whose centre of ``crop_ratio`` per side is of ``image_size``.

    >>> stored_size((224, 224), 0.875)
    (256, 256)
    """
    rows, columns = (round(side / crop_ratio) for side in image_size)
    return rows, columns


@dataclass(eq=False)
class ImageFiles(Dataset):
    """Image files and their labels, decoded on access by ``decode``.

    Args:
        paths: The files.
        labels: The class number of each, or a row of tokens, or of 0.0 and 1.0.
        image_size: Rows and columns that every image is scaled and cropped to.
        in_channels: 3 for colour, 1 for grey.
        centre: Rows and columns of the centre that is kept of a scaled image; None for the whole image.
        stretch: Whether whole images are scaled, whatever their aspect ratio.
    """

    paths: list[Path]
    labels: list[int] | list[list[int]] | list[list[float]]
    image_size: tuple[int, int]
    in_channels: int
    centre: tuple[int, int] | None = None
    stretch: bool = False

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor | str, int | list[int], int]:
        """Return an image (C, H, W) or its error message, its label and its index; index -1 is a blank (padding)."""
        if index < 0:
            blank = torch.zeros(self.in_channels, *(self.centre or self.image_size), dtype=torch.uint8)
            return blank, torch.full_like(torch.tensor(self.labels[0]), -1).tolist(), -1
        try:
            image = decode(self.paths[index], self.image_size, self.in_channels, stretch=self.stretch)
        except ValueError as error:
            # Returned instead of raised, since a worker process would wrap the error in its traceback.
            return str(error), self.labels[index], int(index)
        return tv.center_crop(image, self.centre) if self.centre else image, self.labels[index], int(index)

    def decode(self, indices: Tensor) -> "DecodedBatch":
        """Return the images at ``indices`` that can be read, and what is wrong with the others."""
        return collate_readable([self[index] for index in indices.tolist()])

    def subset(self, indices: Tensor) -> "ImageFiles":
        """Return the files at ``indices``."""
        chosen = indices.tolist()
        return replace(self, paths=[self.paths[i] for i in chosen], labels=[self.labels[i] for i in chosen])

    def without(self, left_out: Collection[int]) -> "ImageFiles":
        """Return all files but those at the indices ``left_out``."""
        return self.subset(torch.tensor([index for index in range(len(self)) if index not in left_out]).long())


@dataclass
class DecodedBatch:
    """The readable images of a batch, and the error message of each unreadable file by its index."""

    images: Tensor
    labels: Tensor
    indices: Tensor
    unreadable: dict[int, str]

    def pin_memory(self) -> "DecodedBatch":
        """Copy images and labels to pinned memory, which is copied to a GPU asynchronously; DataLoader calls this."""
        return DecodedBatch(self.images.pin_memory(), self.labels.pin_memory(), self.indices, self.unreadable)


def collate_readable(items: list[tuple[Tensor | str, int | list[int], int]]) -> DecodedBatch:
    """Stack the readable images of a batch, and list the messages of the others."""
    readable = [item for item in items if not isinstance(item[0], str)]
    images, labels, indices = zip(*readable, strict=True) if readable else ((), (), ())
    return DecodedBatch(
        images=torch.stack(images) if images else torch.empty(0),
        labels=torch.tensor(labels),
        indices=torch.tensor(indices),
        unreadable={index: image for image, _, index in items if isinstance(image, str)},
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
