"""Image files and PIL images as a model takes them.

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
    UPRIGHT,
    ImageFiles,
    centre_of,
    header_orientation,
    message_of,
    name_unreadable,
    seen_box,
    stored_size,
)
from vit.data.normalise import normalise

Given = str | Path | Image.Image


class InputSettings(NamedTuple):
    """What a model says of the images that it takes."""

    channels: int
    image_size: tuple[int, int]
    crop_ratio: float
    pretrained_cfg: Mapping[str, Any]

    @property
    def stretch(self) -> bool:
        """Whether whole photographs are scaled, whatever their aspect ratio, as a reader of texts takes them."""
        return bool(self.pretrained_cfg.get("stretch")) or self.pretrained_cfg.get("crop_mode") == "squash"

    @property
    def scaled_size(self) -> tuple[int, int]:
        """Rows and columns that photographs are scaled to, before the centre that the model sees is cut out."""
        return stored_size(self.image_size, self.crop_ratio)


def input_settings(model: nn.Module) -> InputSettings:
    """Return what a model takes, by the ``pretrained_cfg`` that ``vit.load`` and timm give it.

    Raises:
        ValueError: If it does not tell how its images are normalised, or pads them to squares (timm's "border").
    """
    pretrained_cfg = getattr(model, "pretrained_cfg", None)
    if not isinstance(pretrained_cfg, Mapping) or not pretrained_cfg.get("mean") or not pretrained_cfg.get("std"):
        raise ValueError(
            f"{type(model).__name__} does not tell how its images are normalised (it has no pretrained_cfg with mean "
            "and std): load it by vit.load, or give images as the model takes them, as a tensor"
        )
    if pretrained_cfg.get("crop_mode") == "border":
        raise ValueError(
            f"{type(model).__name__} takes photographs that are padded to squares (crop_mode 'border'), which are not "
            "read here: give images as the model takes them, as a tensor"
        )
    embed, expected = (
        getattr(model, "patch_embed", None),
        pretrained_cfg.get("input_size", (len(pretrained_cfg["mean"]), None, None)),
    )
    size = getattr(embed, "image_size", None) or getattr(embed, "img_size", None) or expected[1:]
    crop = pretrained_cfg.get("crop_ratio", pretrained_cfg.get("crop_pct")) or 1.0
    return InputSettings(getattr(embed, "in_channels", expected[0]), tuple(size), crop, pretrained_cfg)


def name_of(given: Given) -> str:
    """Return the name of a file, of the file that a PIL image was read from, or "PIL image"."""
    path = getattr(given, "filename", "") or "PIL image" if isinstance(given, Image.Image) else given
    return Path(path).name


def upright(image: Image.Image, in_channels: int) -> Image.Image:
    """Return a PIL image as people look at it, in grey or colours.

    Raises:
        ValueError: If its pixels cannot be read.
    """
    try:
        orientation = header_orientation(image)  # before eight_bits, whose result has no tags
        image = eight_bits(image).convert("L" if in_channels == 1 else "RGB")
        return image.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else image
    except Exception as error:  # decoders raise errors of any kind at damaged files, which PIL reads only now
        raise ValueError(f"cannot read {name_of(image)}: {message_of(error)}") from None


def as_tensor(image: Image.Image) -> Tensor:
    """Return the pixels of a PIL image, uint8 (C, H, W)."""
    pixels = np.array(image)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else rearrange(pixels, "h w c -> c h w"))


def _image_files(files: Sequence[Path], settings: InputSettings, max_pixels: int) -> ImageFiles:
    cut = {"centre": settings.image_size, "stretch": settings.stretch}
    return ImageFiles([*files], [0] * len(files), settings.scaled_size, settings.channels, **cut, max_pixels=max_pixels)


def _pixels(given: Path | Image.Image, settings: InputSettings, max_pixels: int) -> Tensor:
    """Return what a model sees of one image, uint8 (C, H, W)."""
    if isinstance(given, Path):
        decoded = _image_files([given], settings, max_pixels).decode(torch.arange(1))
        if decoded.unreadable:
            raise ValueError(f"{decoded.unreadable[0]}: give an image")
        return decoded.images[0]
    image = upright(given, settings.channels)
    box = seen_box(image.size, settings.scaled_size, stretch=settings.stretch)
    return centre_of(as_tensor(image.resize(settings.scaled_size[::-1], BICUBIC, box=box)), settings.image_size)


def as_images(model: nn.Module, given: Tensor | Given | Sequence[Given], max_pixels: int = MAX_PIXELS) -> Tensor:
    """Return images as a model takes them, (B, C, H, W): a tensor as it is, or files and PIL images, read for it.

    Raises:
        ValueError: If a file cannot be read, or the model does not tell its normalisation.
    """
    if isinstance(given, Tensor):
        return given
    settings = input_settings(model)
    pixels = torch.stack([_pixels(one, settings, max_pixels) for one in as_list(given)])
    parameter = next((each for each in model.parameters() if each.is_floating_point()), pixels)  # others are packed
    return normalise(pixels, settings.pretrained_cfg).to(parameter.device, parameter.dtype)


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


def read_images(files: Sequence[Path], model: nn.Module, max_pixels: int = MAX_PIXELS) -> tuple[Tensor, Tensor]:
    """Read images as uint8 (B, C, H, W), and normalised for the model.

    Raises:
        ValueError: If files are damaged or not images; the message names them.
    """
    pixels = read_pixels(files, model, max_pixels)
    return pixels, normalise(pixels, input_settings(model).pretrained_cfg)


def read_pixels(files: Sequence[Path], model: nn.Module, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Read images as uint8 (B, C, H, W), scaled and centre-cropped, or stretched, as the test images of the model were.

    Raises:
        ValueError: If files are damaged or not images; the message names them.
    """
    decoded = _image_files(files, input_settings(model), max_pixels).decode(torch.arange(len(files)))
    if decoded.unreadable:
        raise ValueError(f"{'; '.join(name_unreadable(decoded.unreadable))}: delete them, or leave them out")
    return decoded.images
