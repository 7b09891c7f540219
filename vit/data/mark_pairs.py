"""Two marks at a distance, in noise: a task that cannot be solved without bringing the marks together.

Letters in the einops patterns: n images, c cells, h w rows and columns of pixels of a cell.
"""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from vit.data.digits import SEEDS
from vit.data.module import ImageDataModule, ImageSet, Stage

CELLS = 16  # of an image, side by side
CELL = 2  # pixels along a side of a cell, hence of a patch
LONGEST = CELLS - 1
NOISE = 64  # pixels of the noise are darker
IMAGES: dict[Stage, int] = {"train": 30_000, "val": 1_500, "test": 6_000}


class MarkPairs(ImageDataModule):
    """Two marks in a strip of noise, 2x32 pixels, grey; the class tells whether they are of one kind.

    A mark fills a cell of 2x2 pixels; its upper or its lower two pixels are bright, which are the two kinds. The marks
    are 1 to 15 cells apart, equally often at each distance, and agree in half of the images. One mark alone does not
    tell the class, so a model has to bring both to one place. Images are the same whatever the ``seed``; ``mark_pairs``
    returns the distances.
    """

    num_classes = 2
    class_names = ["different", "same"]
    image_size = (CELL, CELLS * CELL)
    in_channels = 1
    mean = [0.171]
    std = [0.227]

    def load_sets(self) -> dict[Stage, ImageSet]:
        """Return images of training, validation and test, each made by its own generator."""
        stages: Any = ("train", "val", "test") if self.has_validation and self.folds is None else ("train", "test")
        return {stage: ImageSet(*mark_pairs(stage)[:2]) for stage in stages}


def mark_pairs(stage: Stage) -> tuple[Tensor, Tensor, Tensor]:
    """Return the images of a split of ``MarkPairs`` and the distances of their marks; always the same.

    >>> images, labels, distances = mark_pairs("val")
    >>> images.shape, images.dtype, labels.shape, distances.unique().tolist() == list(range(1, 16))
    (torch.Size([1500, 1, 2, 32]), torch.uint8, torch.Size([1500]), True)

    Args:
        stage: "train", "val" or "test".

    Returns:
        Images (N, 1, 2, 32), uint8, labels (N,), 1 if the marks agree, and distances in cells (N,).
    """
    count, generator = IMAGES[stage], torch.Generator().manual_seed(SEEDS[stage])
    number = torch.arange(count)
    distances, labels = 1 + number % LONGEST, number // LONGEST % 2
    first = (torch.rand(count, generator=generator) * (CELLS - distances)).long()
    kinds = torch.randint(2, (count,), generator=generator)
    cells = torch.randint(NOISE, (count, CELLS, CELL, CELL), generator=generator, dtype=torch.uint8)
    for places, of_mark in ((first, kinds), (first + distances, kinds ^ (1 - labels))):
        cells[number, places] = 0
        cells[number, places, of_mark] = 255
    return rearrange(cells, "n c h w -> n 1 h (c w)"), labels, distances
