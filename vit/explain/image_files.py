"""The image files that a command line names: found, read, and given names for what is written of them.

Letters in the einops patterns: c channels.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from einops import rearrange
from torch import Tensor

import vit
from vit.data.files import IMAGE_SUFFIXES, decode, find_files


def find_images(paths: Sequence[Path]) -> list[Path]:
    """The files, and the images below the folders.

    Raises:
        ValueError: If there is no such file, or no image in a folder.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"no image at {path}: check the name, and where you are ({Path.cwd()})")
        found = (
            [file for file in find_files(path) if file.suffix.lower() in IMAGE_SUFFIXES] if path.is_dir() else [path]
        )
        if not found:
            raise ValueError(f"no images in the folder {path}: it needs files such as photo.jpg or photo.png")
        files += found
    return list(dict.fromkeys(files))


def distinct_names(files: Sequence[Path]) -> list[str]:
    """Names for what is written of each file: its own, with that of its folder or a number where others have the same.

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
    """Images as they are, uint8 (B, C, H, W), and as the model takes them.

    They are scaled and centre-cropped to the size that the model was trained on.

    Raises:
        ValueError: If a file is no image.
    """
    embed, statistics = model.patch_embed, model.pretrained_cfg
    pixels = torch.stack([decode(file, embed.image_size, embed.in_channels) for file in files])
    mean, std = (torch.tensor(statistics[name]) for name in ("mean", "std"))
    return pixels, (pixels / 255 - rearrange(mean, "c -> c 1 1")) / rearrange(std, "c -> c 1 1")
