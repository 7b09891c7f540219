"""Images of sixteen handwritten digits, one of which decides the class and cannot be found by its ink.

Letters in the einops patterns: n images, k canvases of a digit, r c rows and columns of digits, h w rows and columns of
pixels.
"""

import torch
from einops import rearrange, repeat
from torch import Tensor

from vit.data.digits import load_canvases, take_digits
from vit.data.module import ImageDataModule, ImageSet, Stage

SIDE = 4  # rows and columns of digits
DIGIT = 8
# Of all choices of five digits, the one for which maps of edges and ink find the digit nearest to chance, on the
# training images.
DECIDING = (2, 3, 5, 7, 8)
ALIKE = 60  # bystanders are drawn from this many digits with the next less ink, and as many with the next more
CANVASES_PER_DIGIT: dict[Stage, int] = {"train": 40, "val": 6, "test": 6}


class CrowdedDigits(ImageDataModule):
    """Sixteen handwritten digits side by side, 32x32 pixels, grey; one is a 2, 3, 5, 7 or 8, and that is the class.

    The others are 0, 1, 4, 6 and 9, do not depend on the class, and have about as much ink. A map that marks ink, edges
    or the centre therefore finds the deciding digit about once in sixteen times, as chance does. Only a map that tells
    digits apart finds it. In ``PlantedDigits`` the digit lies in clutter, and a map of ink alone finds it.

    Digits of a split come from the same split of ``Digits``, whatever the ``seed``. ``crowded_digits`` returns the
    positions of the deciding digits.
    """

    num_classes = len(DECIDING)
    class_names = [str(digit) for digit in DECIDING]
    image_size = (SIDE * DIGIT, SIDE * DIGIT)
    in_channels = 1
    mean = [0.306]
    std = [0.376]

    def load_sets(self) -> dict[Stage, ImageSet]:
        """Return the images of each split of ``Digits``, so that no digit is in two splits."""
        return load_canvases(self, crowded_digits)


def crowded_digits(stage: Stage, val_fraction: float = 0.1) -> tuple[Tensor, Tensor, Tensor]:
    """Return the images of a split of ``CrowdedDigits`` and the positions of the deciding digits; always the same.

    >>> images, labels, boxes = crowded_digits("test")
    >>> images.shape, images.dtype, boxes.shape
    (torch.Size([1074, 1, 32, 32]), torch.uint8, torch.Size([1074, 4]))
    >>> row, column, height, width = boxes[0].tolist()
    >>> digit = images[0, :, row : row + height, column : column + width]

    Args:
        stage: "train", "val" or "test".
        val_fraction: Share of the training digits held out for validation, as in the data module.

    Returns:
        Images (N, 1, 32, 32), uint8, labels (N,), and boxes (N, 4): first row, first column, height, width.
    """
    digits, generator = take_digits(stage, val_fraction)
    deciding = torch.isin(digits.labels, torch.tensor(DECIDING))
    labels = torch.searchsorted(torch.tensor(DECIDING), digits.labels[deciding])
    return crowd(digits.images[deciding], labels, digits.images[~deciding], CANVASES_PER_DIGIT[stage], generator)


def crowd(
    digits: Tensor, labels: Tensor, bystanders: Tensor, canvases: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Put each digit (N, 1, 8, 8) among bystanders of as much ink on several canvases: -> images, labels and boxes."""
    digits = repeat(digits, "n 1 h w -> (k n) 1 h w", k=canvases)
    labels = repeat(labels, "n -> (k n)", k=canvases)
    chosen = torch.cat([digits[:, None], as_dark(digits, bystanders, SIDE**2 - 1, generator)], dim=1)
    image = torch.arange(len(digits))
    places = torch.randint(SIDE**2, (len(digits),), generator=generator)
    order = torch.arange(SIDE**2).repeat(len(digits), 1)
    order[:, 0] = places  # the digit changes places with the bystander there
    order[image, places] = 0
    images = rearrange(chosen[image[:, None], order], "n (r c) 1 h w -> n 1 (r h) (c w)", r=SIDE)
    corners = DIGIT * torch.stack([places // SIDE, places % SIDE], dim=1)
    return images, labels, torch.cat([corners, torch.full_like(corners, DIGIT)], dim=1)


def as_dark(digits: Tensor, bystanders: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw ``count`` bystanders with about as much ink as each digit: (N, 1, 8, 8) -> (N, count, 1, 8, 8)."""
    ink, of_bystanders = (images.sum(dim=(1, 2, 3)) for images in (digits, bystanders))
    by_ink = of_bystanders.argsort(stable=True)
    nearest = torch.searchsorted(of_bystanders[by_ink], ink)[:, None]
    near = min(ALIKE, (len(bystanders) - 1) // 2)
    first = (nearest - near).clamp(0, len(bystanders) - 1 - 2 * near)
    drawn = first + torch.randint(2 * near + 1, (len(digits), count), generator=generator)
    return bystanders[by_ink[drawn]]
