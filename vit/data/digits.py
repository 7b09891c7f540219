"""The 1,797 handwritten digits of scikit-learn, a real data set that needs no download."""

from collections.abc import Callable
from functools import cache

import torch
from einops import rearrange
from torch import Tensor

from vit.data.module import ImageDataModule, ImageSet, Stage

TEST_FRACTION = 0.2
# Seeds of the data sets that are made from these digits: fixed, so that scores are comparable between runs.
SEEDS: dict[Stage, int] = {"train": 0, "val": 1, "test": 2}


class Digits(ImageDataModule):
    """Handwritten digits, 8x8 pixels, grey, 10 classes (Alpaydin and Kaynak 1998); a fifth is held out for test.

    >>> data = Digits(batch_size=64)
    >>> data.setup("fit")
    >>> images, labels = next(iter(data.train_dataloader()))
    >>> images.shape, images.dtype, labels.shape
    (torch.Size([64, 1, 8, 8]), torch.uint8, torch.Size([64]))
    """

    num_classes = 10
    class_names = [str(digit) for digit in range(10)]
    image_size = (8, 8)
    in_channels = 1
    mean = [0.305]
    std = [0.376]

    def load_sets(self) -> dict[Stage, ImageSet]:
        """Return the training and test digits, the same for every ``seed``; folds are made of all digits."""
        digit_set = ImageSet(*(tensor.clone() for tensor in _read_digits()))
        if self.folds is not None:
            return {"train": digit_set}
        train, test = digit_set.split(TEST_FRACTION)
        return {"train": train, "test": test}


@cache
def _read_digits() -> tuple[Tensor, Tensor]:
    """Return uint8 images (1797, 1, 8, 8) and labels (1797,), cached because other data sets read them per split."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    levels = torch.from_numpy(digits.images) * (255 / 16)
    return rearrange(levels.round().to(torch.uint8), "n h w -> n 1 h w"), torch.from_numpy(digits.target)


def take_digits(stage: Stage, val_fraction: float) -> tuple[ImageSet, torch.Generator]:
    """Return the digits of a split, and the generator for images made of them; an unknown split is a ValueError."""
    digits = Digits(val_fraction=val_fraction)
    digits.setup("fit")
    if stage not in digits.sets:
        raise ValueError(
            f"stage {stage!r} is none of {', '.join(digits.sets)} at val_fraction {val_fraction}: choose one of "
            "these, or raise val_fraction above 0"
        )
    return digits.sets[stage], torch.Generator().manual_seed(SEEDS[stage])


def load_canvases(
    data: ImageDataModule, draw: Callable[[Stage, float], tuple[Tensor, Tensor, Tensor]]
) -> dict[Stage, ImageSet]:
    """Return the images that are drawn for each split of ``Digits``.

    Raises:
        ValueError: If folds are asked for.
    """
    if data.folds is not None:
        raise ValueError(
            f"{type(data).__name__} has no folds, as several of its images show one digit: leave --data.folds out"
        )
    stages: list[Stage] = ["train", "val", "test"] if data.val_fraction > 0 else ["train", "test"]
    return {stage: ImageSet(*draw(stage, data.val_fraction)[:2]) for stage in stages}
