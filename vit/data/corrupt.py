"""Data made worse on purpose: wrong labels, and images that are compressed, blurred or pale."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from io import BytesIO
from typing import Any, Literal, get_args

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from vit.data.image_set import ImageSet
from vit.data.split import Stage
from vit.support.checks import check_choice, check_positive

Corrupted = Literal["train", "test", "both"]
PART = 256  # images that are changed at once
SEED = 0  # of the wrong labels


def jpeg(images: Tensor, quality: float) -> Tensor:
    """Compress images as JPEG of a quality from 1 to 100, and read them again.

    Raises:
        ValueError: If they are neither grey nor in colour.
    """
    if images.shape[1] not in (1, 3):
        raise ValueError(f"jpeg holds images of 1 or 3 channels, and these have {images.shape[1]}: leave it out")
    written = []
    for image in images:
        with BytesIO() as file:
            tv.to_pil_image(image).save(file, "JPEG", quality=int(quality))
            written.append(tv.pil_to_tensor(Image.open(file)))
    return torch.stack(written)


def blur(images: Tensor, sigma: float) -> Tensor:
    """Blur images by a Gaussian of ``sigma`` pixels, cut off at 3 sigma, or earlier if the image is too small."""
    rows, columns = (min(max(1, round(3 * sigma)), side - 1) for side in images.shape[-2:])
    return tv.gaussian_blur(images, [2 * columns + 1, 2 * rows + 1], [sigma] * 2)


def contrast(images: Tensor, factor: float) -> Tensor:
    """Multiply the contrast of images: 0.5 brings each pixel halfway to the mean grey of its image."""
    return tv.adjust_contrast(images, factor)


CORRUPTIONS: dict[str, Callable[[Tensor, float], Tensor]] = {"jpeg": jpeg, "blur": blur, "contrast": contrast}


def check_corruptions(corrupt: Mapping[str, Any], corrupted: str) -> None:
    """Check the names and strengths of corruptions, and which images they change.

    >>> check_corruptions({"fog": 1}, "test")
    Traceback (most recent call last):
    ValueError: unknown corruption 'fog': choose 'jpeg', 'blur' or 'contrast'

    Raises:
        ValueError: If a name, a strength or ``corrupted`` is not valid.
    """
    check_choice("corrupted", corrupted, get_args(Corrupted))
    for name, strength in corrupt.items():
        check_choice("corruption", name, tuple(CORRUPTIONS))
        check_positive(f"strength of {name}", strength)
        if name == "jpeg" and not (strength <= 100 and strength == int(strength)):
            raise ValueError(f"strength of jpeg ({strength}) must be a quality, a whole number from 1 to 100")


def corrupt_images(images: Tensor, corrupt: Mapping[str, float]) -> Tensor:
    """Corrupt images in the order of the corruptions: uint8 (N, C, H, W) -> (N, C, H, W)."""
    parts = list(images.split(PART))
    for name, strength in corrupt.items():
        parts = [CORRUPTIONS[name](part, strength) for part in parts]
    return torch.cat(parts)


def change_labels(labels: Tensor, share: float, num_classes: int, seed: int = SEED) -> Tensor:
    """Replace a share of the labels by other classes, each equally probable: (N,) -> (N,).

    Which labels change depends only on ``seed`` and the number of labels. Labels that change at a smaller share also
    change at a larger one, to the same classes.

    >>> labels = torch.zeros(10, dtype=torch.long)
    >>> [int((change_labels(labels, share, num_classes=3) != labels).sum()) for share in (0, 0.2, 1)]
    [0, 2, 10]

    Raises:
        ValueError: If the labels are not class numbers, or there is only one class.
    """
    if labels.ndim > 1 or num_classes < 2:
        raise ValueError(
            f"label_noise ({share}) gives an image one of the other classes, and these images have no class each of "
            "several: set it to 0"
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    steps = torch.randint(1, num_classes, (len(labels),), generator=generator)
    is_changed = torch.zeros(len(labels), dtype=torch.bool)
    is_changed[order[: round(share * len(labels))]] = True
    return torch.where(is_changed, (labels + steps) % num_classes, labels)


def corrupt_sets(
    sets: dict[Stage, ImageSet],
    num_classes: int,
    label_noise: float,
    corrupt: Mapping[str, float],
    corrupted: Corrupted,
) -> list[str]:
    """Replace splits in ``sets`` by corrupted ones, and return a line of text for each change.

    Raises:
        ValueError: If images that are to be changed are not in memory.
    """
    said = []
    if label_noise and "train" in sets:
        train = sets["train"]
        labels = change_labels(train.labels, label_noise, num_classes)
        said.append(
            f"{int((labels != train.labels).sum()):,} of {len(labels):,} training labels are wrong (seed {SEED})"
        )
        sets["train"] = train.relabelled(labels)
    stages: dict[str, tuple[Stage, ...]] = {"train": ("train",), "test": ("test",), "both": ("train", "val", "test")}
    for stage in stages[corrupted] if corrupt else ():
        if stage in sets:
            chosen = sets[stage]
            if not isinstance(chosen.images, Tensor):
                raise ValueError(
                    f"corrupt ({dict(corrupt)}) changes images in memory, and those of {stage} are decoded in each "
                    "epoch: raise memory_limit, or leave corrupt out"
                )
            sets[stage] = replace(chosen, images=corrupt_images(chosen.images, corrupt))
            kinds = ", ".join(f"{name} {strength:g}" for name, strength in corrupt.items())
            said.append(f"{len(chosen.labels):,} {stage} images are corrupted: {kinds}")
    return said
