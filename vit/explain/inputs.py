"""Image files and PIL images: as a model takes them, as people look at them, and which part of them a model sees.

Letters in the einops patterns: c channels, h w rows and columns of pixels.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from einops import rearrange
from PIL import Image
from torch import Tensor, nn

from vit.data.bit_depth import eight_bits
from vit.data.formats import MAX_PIXELS
from vit.data.image_files import (
    BICUBIC,
    SIDEWAYS,
    UPRIGHT,
    ImageFiles,
    centre_of,
    decode,
    header_orientation,
    message_of,
    name_unreadable,
    seen_box,
    stored_size,
    upright_size,
)
from vit.data.normalise import normalise
from vit.support.checks import check_positive_int

SMALLEST_SIDE = 384  # pixels; smaller photographs are enlarged when shown
LARGEST_SIDE = 1600  # pixels; larger ones are scaled down
LEAST_SIDE, MOST_SIDE = 200, 16_000  # pixels that may be asked for
REPEATED = 2  # times; from this enlargement on, pixels are repeated, because interpolated ones look like details

Given = str | Path | Image.Image


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


class Taken(NamedTuple):
    """What a model says of the images that it takes."""

    channels: int
    image_size: tuple[int, int]
    crop_ratio: float
    settings: Mapping[str, Any]

    @property
    def stretch(self) -> bool:
        """Whether whole photographs are scaled, whatever their aspect ratio, as a reader of texts takes them."""
        return bool(self.settings.get("stretch")) or self.settings.get("crop_mode") == "squash"

    @property
    def scaled_size(self) -> tuple[int, int]:
        """Rows and columns that photographs are scaled to, before the centre that the model sees is cut out."""
        return stored_size(self.image_size, self.crop_ratio)


def taken_by(model: nn.Module) -> Taken:
    """Return what a model takes, by the ``pretrained_cfg`` that ``vit.load`` and timm give it.

    Raises:
        ValueError: If it does not tell how its images are normalised, or pads them to squares (timm's "border").
    """
    settings = getattr(model, "pretrained_cfg", None)
    if not isinstance(settings, Mapping) or not settings.get("mean") or not settings.get("std"):
        raise ValueError(
            f"{type(model).__name__} does not tell how its images are normalised (it has no pretrained_cfg with mean "
            "and std): load it by vit.load, or give images as the model takes them, as a tensor"
        )
    if settings.get("crop_mode") == "border":
        raise ValueError(
            f"{type(model).__name__} takes photographs that are padded to squares (crop_mode 'border'), which are not "
            "read here: give images as the model takes them, as a tensor"
        )
    embed, expected = (
        getattr(model, "patch_embed", None),
        settings.get("input_size", (len(settings["mean"]), None, None)),
    )
    size = getattr(embed, "image_size", None) or getattr(embed, "img_size", None) or expected[1:]
    crop = settings.get("crop_ratio", settings.get("crop_pct")) or 1.0
    return Taken(getattr(embed, "in_channels", expected[0]), tuple(size), crop, settings)


def as_images(model: nn.Module, given: Tensor | Given | Sequence[Given], max_pixels: int = MAX_PIXELS) -> Tensor:
    """Return images as a model takes them, (B, C, H, W): a tensor as it is, or files and PIL images, read for it.

    Raises:
        ValueError: If a file cannot be read, or the model does not tell its normalisation.
    """
    if isinstance(given, Tensor):
        return given
    taken = taken_by(model)
    pixels = torch.stack([_pixels(one, taken, max_pixels) for one in as_list(given)])
    parameter = next((each for each in model.parameters() if each.is_floating_point()), pixels)  # others are packed
    return normalise(pixels, taken.settings).to(parameter.device, parameter.dtype)


def as_list(given: Given | Sequence[Given]) -> list[Path | Image.Image]:
    """Return files and PIL images as a list.

    Raises:
        ValueError: If there is none, or one of them is something else.
    """
    several = [*given] if isinstance(given, Iterable) and not isinstance(given, Given) else [given]
    if not several:
        raise ValueError("no images were given: give files, PIL images or a tensor (batch, channels, rows, columns)")
    for one in several:
        if not isinstance(one, Given):
            raise ValueError(
                f"{type(one).__name__} is no image: give the path of a file, a PIL image, a list of these, or a "
                "tensor (batch, channels, rows, columns) as the model takes it"
            )
        if isinstance(one, Image.Image) and not (one.width and one.height):
            raise ValueError(f"the PIL image of {one.width} x {one.height} pixels is empty: give one with pixels")
    return [Path(one) if isinstance(one, str) else one for one in several]


def name_of(given: Given) -> str:
    """Return the name of a file, of the file that a PIL image was read from, or "PIL image"."""
    path = getattr(given, "filename", "") or "PIL image" if isinstance(given, Image.Image) else given
    return Path(path).name


def read_images(files: Sequence[Path], model: nn.Module, max_pixels: int = MAX_PIXELS) -> tuple[Tensor, Tensor]:
    """Read images as uint8 (B, C, H, W), and normalised for the model.

    Raises:
        ValueError: If files are damaged or not images; the message names them.
    """
    pixels = read_pixels(files, model, max_pixels)
    return pixels, normalise(pixels, taken_by(model).settings)


def read_pixels(files: Sequence[Path], model: nn.Module, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Read images as uint8 (B, C, H, W), scaled and centre-cropped, or stretched, as the test images of the model were.

    Raises:
        ValueError: If files are damaged or not images; the message names them.
    """
    decoded = _image_files(files, taken_by(model), max_pixels).decode(torch.arange(len(files)))
    if decoded.unreadable:
        raise ValueError(f"{'; '.join(name_unreadable(decoded.unreadable))}: delete them, or leave them out")
    return decoded.images


def locate(given: Given, model: nn.Module, max_pixels: int = MAX_PIXELS) -> Photograph:
    """Return the size of a photograph as taken, and the part of it that ``read_pixels`` gives to the model."""
    taken = taken_by(model)
    if isinstance(given, Image.Image):
        path, image = Path(name_of(given)), given
        orientation = header_orientation(given)
        width, height = given.size[::-1] if orientation in SIDEWAYS else given.size
        orientation = orientation if orientation in UPRIGHT else 1
    else:
        path, image = Path(given), None
        width, height, orientation = upright_size(path, max_pixels)
    seen = seen_box((width, height), taken.scaled_size, centre=taken.image_size, stretch=taken.stretch)
    return Photograph(path, width, height, orientation, seen, image)


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
    image = _upright(photograph.image, in_channels)
    return _as_tensor(image if size is None else image.resize(size[::-1], BICUBIC))


def _pixels(given: Path | Image.Image, taken: Taken, max_pixels: int) -> Tensor:
    """Return what a model sees of one image, uint8 (C, H, W)."""
    if isinstance(given, Path):
        decoded = _image_files([given], taken, max_pixels).decode(torch.arange(1))
        if decoded.unreadable:
            raise ValueError(f"{decoded.unreadable[0]}: give an image")
        return decoded.images[0]
    image = _upright(given, taken.channels)
    box = seen_box(image.size, taken.scaled_size, stretch=taken.stretch)
    return centre_of(_as_tensor(image.resize(taken.scaled_size[::-1], BICUBIC, box=box)), taken.image_size)


def _image_files(files: Sequence[Path], taken: Taken, max_pixels: int) -> ImageFiles:
    cut = {"centre": taken.image_size, "stretch": taken.stretch}
    return ImageFiles([*files], [0] * len(files), taken.scaled_size, taken.channels, **cut, max_pixels=max_pixels)


def _upright(image: Image.Image, in_channels: int) -> Image.Image:
    try:
        orientation = header_orientation(image)  # before eight_bits, whose result has no tags
        image = eight_bits(image).convert("L" if in_channels == 1 else "RGB")
        return image.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else image
    except Exception as error:  # decoders raise errors of any kind at damaged files, which PIL reads only now
        raise ValueError(f"cannot read {name_of(image)}: {message_of(error)}") from None


def _as_tensor(image: Image.Image) -> Tensor:
    pixels = np.array(image)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else rearrange(pixels, "h w c -> c h w"))
