"""Image files of a command line: finding them, reading them, and naming the files written for them."""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import vit
from vit.data.image_files import ImageFiles, name_unreadable, stored_size
from vit.data.inventory import inventory_of_folder
from vit.data.normalise import normalise
from vit.data.search import search


def find_images(paths: Sequence[Path]) -> list[Path]:
    """Return the given files and all images below the given folders, each once; tell what the folders hold.

    Raises:
        ValueError: If a path does not exist, or a folder contains no image.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"no image at {path}: check the name and the current folder ({Path.cwd()})")
        if not path.is_dir():
            files.append(path)
            continue
        found = search(path)
        if not found.images:
            remedy = "give one with files such as photo.jpg or photo.png"
            raise ValueError(f"no images in the folder {path}: {remedy}{found.hint}")
        print(inventory_of_folder(path, found))
        files += found.images
    return list(dict.fromkeys(files))


def without_damaged(files: Sequence[Path]) -> list[Path]:
    """Return the files that can be read, and print what is wrong with the others, and notes on these.

    Raises:
        ValueError: If none can be read.
    """
    tried = ImageFiles([*files], [0] * len(files), (1, 1), in_channels=3)
    batch = tried.decode(torch.arange(len(files)))
    messages = batch.unreadable
    if len(messages) == len(files):
        raise ValueError(f"{'; '.join(name_unreadable(messages))}: give images")
    for message in name_unreadable(messages):
        print(f"left out: {message}", file=sys.stderr)
    for message in name_unreadable(
        {index: f"{files[index]}: {'; '.join(notes)}" for index, notes in batch.notes.items()}
    ):
        print(message, file=sys.stderr)
    return tried.without(messages).paths


def distinct_names(files: Sequence[Path]) -> list[str]:
    """Return a distinct name for each file: its stem, with its folder or a number added if stems are equal.

    >>> distinct_names([Path("a/cat.jpg"), Path("b/cat.jpg"), Path("b/dog.jpg"), Path("b/cat.png")])
    ['a_cat', 'b_cat', 'dog', 'b_cat_2']
    """
    stems = [file.stem for file in files]
    names: list[str] = []
    for file in files:
        name = file.stem if stems.count(file.stem) == 1 else f"{file.resolve().parent.name}_{file.stem}"
        free = (f"{name}_{number}" if number > 1 else name for number in range(1, len(files) + 1))
        names.append(next(candidate for candidate in free if candidate not in names))
    return names


def read_images(files: Sequence[Path], model: vit.VisionTransformer) -> tuple[Tensor, Tensor]:
    """Read images as uint8 (B, C, H, W), and normalised for the model.

    Raises:
        ValueError: If files are damaged or not images; the message names them.
    """
    pixels = read_pixels(files, model)
    return pixels, normalise(pixels, model.pretrained_cfg)


def read_pixels(files: Sequence[Path], model: vit.VisionTransformer) -> Tensor:
    """Read images as uint8 (B, C, H, W), scaled and centre-cropped as the test images of the model were.

    Raises:
        ValueError: If files are damaged or not images; the message names them.
    """
    embed = model.patch_embed
    size = stored_size(embed.image_size, model.pretrained_cfg.get("crop_ratio", 1.0))
    image_files = ImageFiles([*files], [0] * len(files), size, embed.in_channels, centre=embed.image_size)
    decoded = image_files.decode(torch.arange(len(files)))
    if decoded.unreadable:
        raise ValueError(f"{'; '.join(name_unreadable(decoded.unreadable))}: delete them, or leave them out")
    return decoded.images
