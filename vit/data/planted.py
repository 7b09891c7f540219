"""Handwritten digits at known positions in clutter: images with a ground truth for explanations.

Letters in the einops patterns: n images, r c rows and columns of cells, q quarters of a digit, h w rows and columns of
pixels. A cell of the canvas is as large as a quarter of a digit.
"""

import torch
from einops import rearrange
from torch import Tensor

from vit.data.digits import Digits, load_canvases, take_digits
from vit.data.module import ImageDataModule, ImageSet, Stage

CANVAS = 32
DIGIT = 8
QUARTER = 4
CELLS = CANVAS // QUARTER
CLUTTER_DENSITY = 0.5  # share that is filled of every second cell in every second row
CANVASES_PER_DIGIT: dict[Stage, int] = {"train": 40, "val": 3, "test": 3}


class PlantedDigits(ImageDataModule):
    """One whole handwritten digit among quarters of other digits, 32x32 pixels, grey; the whole digit is the class.

    All quarters lie on a grid of 4x4 pixels. A patch of this size does not show whether it belongs to the digit or to
    the clutter. Only the four patches of the digit touch each other, and only they determine the label.

    Digits and clutter of a split are made of the same split of ``Digits``, whatever the ``seed``. ``planted_digits``
    returns the positions of the digits.
    """

    num_classes = 10
    class_names = Digits.class_names
    image_size = (CANVAS, CANVAS)
    in_channels = 1
    mean = [0.049]
    std = [0.188]

    def load_sets(self) -> dict[Stage, ImageSet]:
        """Return the canvases of each split of ``Digits``, so that no digit is in two splits."""
        return load_canvases(self, planted_digits)


def planted_digits(stage: Stage, val_fraction: float = 0.1) -> tuple[Tensor, Tensor, Tensor]:
    """Return the images of a split of ``PlantedDigits`` and the positions of their digits; always the same.

    >>> images, labels, boxes = planted_digits("test")
    >>> images.shape, images.dtype, labels.shape, boxes.shape
    (torch.Size([1077, 1, 32, 32]), torch.uint8, torch.Size([1077]), torch.Size([1077, 4]))
    >>> row, column, height, width = boxes[0].tolist()
    >>> digit = images[0, :, row : row + height, column : column + width]

    Args:
        stage: "train", "val" or "test".
        val_fraction: Share of the training digits held out for validation, as in the data module.

    Returns:
        Images (N, 1, 32, 32), uint8, labels (N,), and boxes (N, 4): first row, first column, height, width.
    """
    digits, generator = take_digits(stage, val_fraction)
    return plant(digits, CANVASES_PER_DIGIT[stage], generator)


def plant(digits: ImageSet, canvases: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Paste each digit (N, 1, 8, 8) onto several canvases of clutter, and return images, labels and boxes."""
    quarters = rearrange(digits.images, "n 1 (r h) (c w) -> n (r c) h w", r=2, c=2)
    whole = quarters.repeat(canvases, 1, 1, 1)
    corners = torch.randint(CELLS - 1, (len(whole), 2), generator=generator)
    cells = clutter(quarters, corners, generator)
    image = torch.arange(len(whole))
    for quarter in range(4):
        row, column = (corners + torch.tensor(divmod(quarter, 2))).unbind(dim=1)
        cells[image, row, column] = whole[:, quarter]
    images = rearrange(cells, "n r c h w -> n 1 (r h) (c w)")
    boxes = torch.cat([corners * QUARTER, torch.full_like(corners, DIGIT)], dim=1)
    return images, digits.labels.repeat(canvases), boxes


def clutter(quarters: Tensor, corners: Tensor, generator: torch.Generator) -> Tensor:
    """Return canvases of random quarters, none of which touches another quarter or the digit.

    More clutter, which would touch the digit, is too hard for a small ViT.

    Args:
        quarters: Quarters of digits, (N, 4, 4, 4).
        corners: First row and column of the cells of the digit, (B, 2).
        generator: Generator of the quarters and their positions.

    Returns:
        The cells of the canvases, (B, rows, columns, 4, 4).
    """
    pieces = rearrange(quarters, "n q h w -> (n q) h w")
    chosen = torch.randint(len(pieces), (len(corners), CELLS, CELLS), generator=generator)
    filled = torch.rand(chosen.shape, generator=generator) < CLUTTER_DENSITY
    parity = torch.randint(2, corners.shape, generator=generator)
    cell = torch.arange(CELLS)
    rows, columns = (cell % 2 == parity[..., None]).unbind(dim=1)
    distance = cell - corners[..., None]
    near_rows, near_columns = ((distance >= -1) & (distance <= 2)).unbind(dim=1)
    filled &= rows[:, :, None] & columns[:, None, :] & ~(near_rows[:, :, None] & near_columns[:, None, :])
    return pieces[chosen] * filled[..., None, None]
