"""Image files of a command line: finding them, reading them, and naming the files written for them."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import vit
from vit.data.image_files import ImageFiles, image_files_below, name_unreadable, stored_size
from vit.data.normalise import normalise
from vit.support.printable import printable


def find_images(paths: Sequence[Path]) -> list[Path]:
    """Return the given files and all images below the given folders, each once.

    Raises:
        ValueError: If a path does not exist, or a folder contains no image.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"no image at {path}: check the name and the current folder ({Path.cwd()})")
        found = image_files_below(path) if path.is_dir() else [path]
        if not found:
            raise ValueError(f"no images in the folder {path}: give one with files such as photo.jpg or photo.png")
        files += found
    return list(dict.fromkeys(files))


def without_damaged(files: Sequence[Path]) -> list[Path]:
    """Return the files that can be read, and print what is wrong with the others.

    Raises:
        ValueError: If none can be read.
    """
    tried = ImageFiles([*files], [0] * len(files), (1, 1), in_channels=3)
    messages = {index: image for image, _, index in map(tried.__getitem__, range(len(files))) if isinstance(image, str)}
    if len(messages) == len(files):
        raise ValueError(f"{'; '.join(name_unreadable(messages))}: give images")
    for message in name_unreadable(messages):
        print(f"left out: {printable(message)}", file=sys.stderr)
    return tried.without(messages).paths


def distinct_names(files: Sequence[Path]) -> list[str]:
    """Return a distinct name for each file: its stem; if stems are equal, with its suffix, then with its folders.

    >>> distinct_names([Path("cat.jpg"), Path("cat.png"), Path("dog.jpg")])
    ['cat.jpg', 'cat.png', 'dog']
    >>> distinct_names([Path("a/pets/cat.jpg"), Path("b/pets/cat.jpg")])
    ['a_pets_cat', 'b_pets_cat']
    """
    names: dict[int, str] = {}
    parents = [file.parent.resolve().parts[1:] for file in files]
    for folders in range(1 + max(map(len, parents), default=0)):
        for end in ("stem", "name"):
            unnamed = {
                index: printable("_".join([*parents[index][len(parents[index]) - folders :], getattr(file, end)]))
                for index, file in enumerate(files)
                if index not in names and folders <= len(parents[index])
            }
            # Compared without case, as some file systems do.
            taken = Counter(name.casefold() for name in [*names.values(), *unnamed.values()])
            names |= {index: name for index, name in unnamed.items() if taken[name.casefold()] == 1}
    # Two of a/b_c.jpg and a_b/c.jpg, or one file named twice.
    return [names.get(index, f"{printable(file.name)}_{index + 1}") for index, file in enumerate(files)]


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
