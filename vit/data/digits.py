"""The 1,797 handwritten digits inside scikit-learn: a real data set that needs no download."""

from typing import Any

import torch
from einops import rearrange

from vit.data.module import ImageDataModule, ImageSet, Stage
from vit.data.split import SPLIT_SEED, stratified_split

TEST_FRACTION = 0.2


class Digits(ImageDataModule):
    """Handwritten digits, 8x8 pixels, grey, 10 classes (Alpaydin and Kaynak 1998); a fifth is held out for test.

    Args:
        kwargs: Batches, splits and augmentation, as for every data module.
    """

    num_classes = 10
    class_names = [str(digit) for digit in range(10)]
    image_size = (8, 8)
    in_channels = 1
    mean = [0.305]
    std = [0.376]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def load_sets(self) -> dict[Stage, ImageSet]:
        """All digits but the test fifth for training; the fifth never changes, whatever ``seed``."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        levels = torch.from_numpy(digits.images) * (255 / 16)
        images = rearrange(levels.round().to(torch.uint8), "n h w -> n 1 h w")
        digit_set = ImageSet(images, torch.from_numpy(digits.target))
        train, test = stratified_split(digit_set.labels, TEST_FRACTION, SPLIT_SEED)
        return {"train": digit_set.subset(train), "test": digit_set.subset(test)}
