"""RandAugment and TrivialAugment on whole batches: each image draws an operation and a strength of its own.

The ranges of the strengths are torchvision's.
"""

import torch
from torch import Tensor

from vit.data.operations import OPERATIONS, operate

BINS = 31
SIGNED = {
    *("shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
    *("brightness", "color", "contrast", "sharpness"),
}


class BatchPolicy:
    """Apply random operations to a batch of uint8 images, (B, C, H, W) -> (B, C, H, W).

    Args:
        strongest: For each operation its strength at the highest magnitude; the sign is random where it matters.
        num_ops: Operations per image, one after the other.
        magnitude: Magnitude from 0 to 30; None draws one per image and operation.
    """

    def __init__(self, strongest: dict[str, float], num_ops: int, magnitude: int | None) -> None:
        names = [*strongest, "identity"]
        self.numbers = torch.tensor([OPERATIONS.index(name) for name in names])
        self.signed = torch.tensor([name in SIGNED for name in names])
        self.strongest = torch.tensor([*strongest.values(), 0.0])
        self.num_ops = num_ops
        self.magnitude = magnitude

    def __call__(self, images: Tensor) -> Tensor:
        """Augment each image with ``num_ops`` operations."""
        for _ in range(self.num_ops):
            images = self._one_operation_each(images)
        return images

    def _one_operation_each(self, images: Tensor) -> Tensor:
        b = images.shape[0]
        choice = torch.randint(len(self.numbers), (b,))
        level = torch.randint(BINS, (b,)) if self.magnitude is None else torch.full((b,), self.magnitude)
        sign = 1 - 2 * torch.randint(2, (b,))
        strength = level / (BINS - 1) * self.strongest[choice]
        return operate(images, self.numbers[choice], torch.where(self.signed[choice], strength * sign, strength))


class RandAugment(BatchPolicy):
    """Two random operations of one magnitude per image (Cubuk et al. 2020)."""

    def __init__(self, num_ops: int = 2, magnitude: int = 9) -> None:
        strongest = {
            "shear_x": 0.3,
            "shear_y": 0.3,
            "translate_x": 150 / 331,
            "translate_y": 150 / 331,
            "rotate": 30.0,
            "brightness": 0.9,
            "color": 0.9,
            "contrast": 0.9,
            "sharpness": 0.9,
            "posterize": 4.0,
            "solarize": 1.0,
            "autocontrast": 0.0,
            "equalize": 0.0,
        }
        super().__init__(strongest, num_ops, magnitude)


class TrivialAugment(BatchPolicy):
    """One random operation of a random magnitude per image (Mueller and Hutter 2021, the wide space).

    Shifts reach the whole width of an image; the paper's 32 pixels are that for the 32-pixel images it used.
    """

    def __init__(self) -> None:
        strongest = {
            "shear_x": 0.99,
            "shear_y": 0.99,
            "translate_x": 1.0,
            "translate_y": 1.0,
            "rotate": 135.0,
            "brightness": 0.99,
            "color": 0.99,
            "contrast": 0.99,
            "sharpness": 0.99,
            "posterize": 6.0,
            "solarize": 1.0,
            "autocontrast": 0.0,
            "equalize": 0.0,
        }
        super().__init__(strongest, num_ops=1, magnitude=None)
