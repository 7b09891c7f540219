"""Rows of handwritten digits on a picture, with the place of each digit: numbers to be read.

Letters in the einops patterns: n pictures, h w rows and columns of pixels, i j rows and columns of quarters.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vit.data.alphabet import Alphabet
from vit.data.digits import take_digits
from vit.data.module import ImageDataModule, ImageSet, Stage
from vit.support.checks import check_natural, check_positive_int
from vit.support.files import replacing

HEIGHT, WIDTH = 32, 96
MAX_LENGTH = 5
SMALLEST, LARGEST = 12, 16  # sides of a digit in pixels: the digits of 8 pixels, 1.5 to 2 times as large
GAP = 4  # widest gap between two digits in pixels
FRAGMENT = 4  # side of a piece of clutter, a quarter of a digit
ALPHABET = Alphabet("0123456789")


@dataclass
class Numbers:
    """Pictures of numbers.

    Attributes:
        images: The pictures, uint8 (N, 1, 32, 96).
        tokens: The digits of each between start and end, (N, 7), as ``Alphabet`` encodes them.
        boxes: First row, first column, height and width of each digit in pixels, (N, 5, 4); zeros for no digit.
    """

    images: Tensor
    tokens: Tensor
    boxes: Tensor


class DigitStrings(ImageDataModule):
    """Numbers of one to five handwritten digits on pictures of 32x96 pixels, grey, made from those of ``Digits``.

    Digits are 1.5 to 2 times as large as in ``Digits``, with gaps of 0 to 4 pixels. A number stands at a random place
    among fragments of other digits. The splits use different digits. The pictures do not depend on ``seed``.

    >>> data = DigitStrings(count=100, batch_size=20)
    >>> data.setup("fit")
    >>> images, tokens = next(iter(data.train_dataloader()))
    >>> images.shape, tokens.shape
    (torch.Size([20, 1, 32, 96]), torch.Size([20, 7]))

    Args:
        count: Number of training pictures; validation and test have 2,000 each.
        overlap: Maximum number of pixels by which a digit covers the one before it.
        clutter: Maximum number of fragments on a picture.
        batch_size: Pictures per step and device.
        val_fraction: Share of the digits of each class that validation pictures are made of.
        seed: Seed of the order of the pictures.

    Raises:
        ValueError: If an argument is out of its range.
    """

    letters = ALPHABET.letters
    max_length = MAX_LENGTH
    num_classes = 0
    class_names: ClassVar[list[str]] = []
    image_size = (HEIGHT, WIDTH)
    in_channels = 1
    mean = [0.063]
    std = [0.194]

    def __init__(
        self,
        count: int = 50_000,
        overlap: int = 0,
        clutter: int = 4,
        batch_size: int = 64,
        val_fraction: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, val_fraction=val_fraction, seed=seed)
        check_positive_int("count", count)
        check_natural("overlap", overlap, "0 leaves each digit by itself")
        if overlap >= SMALLEST:
            raise ValueError(f"overlap ({overlap}) must be less than the smallest digit, {SMALLEST} pixels wide")
        check_natural("clutter", clutter, "0 leaves the picture clean")
        self.counts: dict[Stage, int] = {"train": count, "val": 2000, "test": 2000}
        self.overlap = overlap
        self.clutter = clutter

    def load_sets(self) -> dict[Stage, ImageSet]:
        """Return the pictures of each split."""
        stages: list[Stage] = ["train", "val", "test"] if self.val_fraction > 0 else ["train", "test"]
        return {stage: ImageSet(made.images, made.tokens) for stage in stages for made in [self.numbers(stage)]}

    def numbers(self, stage: Stage) -> Numbers:
        """Return the pictures of a split with the places of their digits: always the same for the same arguments."""
        digits, generator = take_digits(stage, self.val_fraction)
        return write_numbers(digits, self.counts[stage], self.overlap, self.clutter, generator)


def write_numbers(digits: ImageSet, count: int, overlap: int, clutter: int, generator: torch.Generator) -> Numbers:
    """Write ``count`` numbers of one to five digits onto pictures.

    Args:
        digits: Images (M, 1, 8, 8), uint8, and labels of the digits to write with.
        count: Number of pictures.
        overlap: Maximum number of pixels by which a digit covers the one before it.
        clutter: Maximum number of fragments on a picture.
        generator: Source of all random choices.
    """

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=generator)

    lengths = draw(1, MAX_LENGTH, count)
    is_written = torch.arange(MAX_LENGTH) < lengths[:, None]
    chosen = draw(0, len(digits.labels) - 1, count, MAX_LENGTH)
    sides = draw(SMALLEST, LARGEST, count, MAX_LENGTH) * is_written
    gaps = draw(-overlap, GAP, count, MAX_LENGTH) * is_written
    gaps[:, 0] = 0
    columns = (sides + gaps).cumsum(dim=1) - sides
    spare = WIDTH - (columns + sides).amax(dim=1)
    columns = columns + (torch.rand(count, generator=generator) * (spare + 1)).long()[:, None]
    rows = (torch.rand(count, MAX_LENGTH, generator=generator) * (HEIGHT - sides + 1)).long()
    boxes = torch.stack([rows, columns, sides, sides], dim=-1) * is_written[..., None]
    images = scatter_fragments(digits.images, boxes, clutter, generator)
    for place in range(MAX_LENGTH):
        paste(images, digits.images[chosen[:, place]], boxes[:, place])
    tokens = torch.full((count, MAX_LENGTH + 2), ALPHABET.end)
    tokens[:, 0] = ALPHABET.start
    tokens[:, 1:-1] = torch.where(is_written, digits.labels[chosen], ALPHABET.end)
    return Numbers(images, tokens, boxes)


def scatter_fragments(digits: Tensor, boxes: Tensor, clutter: int, generator: torch.Generator) -> Tensor:
    """Return pictures with up to ``clutter`` quarters of digits (M, 1, 8, 8) each, none of which touches a box.

    Boxes are (N, K, 4), pictures (N, 1, 32, 96).
    """
    pieces = rearrange(digits, "n 1 (i h) (j w) -> (n i j) 1 h w", i=2, j=2)
    images = torch.zeros(len(boxes), 1, HEIGHT, WIDTH, dtype=torch.uint8)
    for _ in range(clutter):
        corners = torch.stack(
            [torch.randint(side - FRAGMENT + 1, (len(boxes),), generator=generator) for side in (HEIGHT, WIDTH)], dim=1
        )
        chosen = pieces[torch.randint(len(pieces), (len(boxes),), generator=generator)]
        # One pixel of distance on each side.
        starts, ends = boxes[..., :2] - 1, boxes[..., :2] + boxes[..., 2:] + 1
        apart = (corners[:, None] >= ends) | (corners[:, None] + FRAGMENT <= starts)
        is_free = (apart.any(dim=-1) | (boxes[..., 2] == 0)).all(dim=1)
        size = torch.full_like(corners, FRAGMENT) * is_free[:, None]
        paste(images, chosen, torch.cat([corners, size], dim=1))
    return images


def paste(images: Tensor, patches: Tensor, boxes: Tensor) -> None:
    """Draw patches into boxes of images, in place; the brighter pixel stays.

    Args:
        images: Images, uint8 (N, 1, H, W).
        patches: A patch for each, uint8 (N, 1, h, w), which is resized to its box.
        boxes: First row, first column, height and width, (N, 4); a patch without height is not drawn.
    """
    for side in filter(None, boxes[:, 2].unique().tolist()):
        which = (boxes[:, 2] == side).nonzero()[:, 0]
        resized = patches[which]
        if resized.shape[-1] != side:
            resized = F.interpolate(resized.float(), (side, side), mode="bilinear").round().to(torch.uint8)
        offsets = torch.arange(side)
        rows, columns = (rearrange(boxes[which, axis], "n -> n 1") + offsets for axis in (0, 1))
        place = (which[:, None, None], 0, rows[:, :, None], columns[:, None, :])
        images[place] = images[place].maximum(resized[:, 0])


def save_numbers(numbers: Numbers, folder: str | Path) -> None:
    """Write pictures as PNG files, and ``texts.csv`` with a line for each: its file and its text.

    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> save_numbers(DigitStrings(count=3).numbers("train"), folder)
    >>> sorted(path.name for path in folder.iterdir())
    ['00000.png', '00001.png', '00002.png', 'texts.csv']
    """
    from PIL import Image

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for index, (image, text) in enumerate(zip(numbers.images, ALPHABET.decode(numbers.tokens), strict=True)):
        name = f"{index:05}.png"
        Image.fromarray(image[0].numpy()).save(folder / name)  # texts.csv comes last: without it, nothing reads them
        rows.append((name, text))
    with replacing(folder / "texts.csv") as path, path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file", "text"), *rows])
