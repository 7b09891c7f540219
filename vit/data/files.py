"""Image files: search, decoding, and batches of decoded images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset

# The errors of Pillow for a damaged file and for a file that is not an image.
UNREADABLE = (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError)
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


def find_files(root: Path) -> list[Path]:
    """Return all files below a folder except hidden ones, sorted by path."""
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )


def upright(image: Image.Image) -> Image.Image:
    """Rotate and mirror an image as its EXIF orientation requires."""
    image.load()
    image.getexif()
    # exif_transpose would parse the raw block again, and fail if it is malformed; the parsed tags are enough.
    image.info.pop("exif", None)
    return ImageOps.exif_transpose(image)


def decode(path: Path, image_size: tuple[int, int] | None, in_channels: int) -> Tensor:
    """Read an image as uint8 (C, H, W), upright, scaled and centre-cropped to ``image_size`` (rows, columns) if given.

    Of ``in_channels``, 3 is colour and 1 grey.

    Raises:
        ValueError: If the file is damaged or not an image; the message names it.
    """
    try:
        with Image.open(path) as file:
            image = _eight_bit(upright(file)).convert("L" if in_channels == 1 else "RGB")
    except UNREADABLE as error:
        reason = "it is no image" if isinstance(error, UnidentifiedImageError) else str(error)
        raise ValueError(f"cannot read image {path}: {reason}") from None
    if image_size is not None and image.size != image_size[::-1]:
        image = ImageOps.fit(image, image_size[::-1], Image.Resampling.BICUBIC)
    pixels = np.array(image)
    return torch.from_numpy(pixels[None] if in_channels == 1 else rearrange(pixels, "h w c -> c h w"))


def _eight_bit(image: Image.Image) -> Image.Image:
    """Convert the modes that Pillow would clip or warn about: 16-bit grey, and palettes with transparency."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image) // 257).clip(0, 255).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA")
    return image


class ImageFiles(Dataset):
    """Image files with the class index of each, decoded on access, as ``decode`` does."""

    def __init__(
        self, paths: Sequence[Path], labels: Sequence[int], image_size: tuple[int, int], in_channels: int
    ) -> None:
        self.paths = list(paths)
        self.labels = list(labels)
        self.image_size = image_size
        self.in_channels = in_channels

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor | str, int, int]:
        """Return an image (C, H, W) or its error message, its label and its index; for index -1 a blank (padding)."""
        if index < 0:
            return torch.zeros(self.in_channels, *self.image_size, dtype=torch.uint8), -1, -1
        try:
            return decode(self.paths[index], self.image_size, self.in_channels), self.labels[index], int(index)
        except ValueError as error:
            # Returned instead of raised, since a worker process would wrap the error in its traceback.
            return str(error), self.labels[index], int(index)


@dataclass
class DecodedBatch:
    """The readable images of a batch, and an error message for each unreadable file."""

    images: Tensor
    labels: Tensor
    indices: Tensor
    unreadable: list[str]

    def raise_unreadable(self) -> None:
        """Raise a ValueError that names the first unreadable file and counts the others, if there are any."""
        if self.unreadable:
            more = f" (and {len(self.unreadable) - 1} more)" if len(self.unreadable) > 1 else ""
            raise ValueError(f"{self.unreadable[0]}{more}: replace or delete the file")

    def pin_memory(self) -> "DecodedBatch":
        """Copy images and labels to pinned memory, for asynchronous copies to a GPU; DataLoader calls this."""
        return DecodedBatch(self.images.pin_memory(), self.labels.pin_memory(), self.indices, self.unreadable)


def collate_readable(items: list[tuple[Tensor | str, int, int]]) -> DecodedBatch:
    """Stack the readable images of a batch, and list the messages of the others."""
    readable = [item for item in items if not isinstance(item[0], str)]
    images, labels, indices = zip(*readable, strict=True) if readable else ((), (), ())
    return DecodedBatch(
        images=torch.stack(images) if images else torch.empty(0),
        labels=torch.tensor(labels),
        indices=torch.tensor(indices),
        unreadable=[item[0] for item in items if isinstance(item[0], str)],
    )
