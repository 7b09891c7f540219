"""RandAugment and TrivialAugment on whole batches: each image draws its own operations and strengths."""

import torch
from torch import Tensor

from vit.data.operations import OPERATIONS, apply_operations

# For each operation: the strength at the highest magnitude in RandAugment (Cubuk et al. 2020) and in TrivialAugment
# (Mueller and Hutter 2021, the wide space), and whether its sign is random. The ranges are torchvision's, except that
# TrivialAugment translates by up to the whole image: the paper's 32 pixels are the width of the images it used.
STRENGTHS = {
    "shear_x": (0.3, 0.99, True),
    "shear_y": (0.3, 0.99, True),
    "translate_x": (150 / 331, 1.0, True),
    "translate_y": (150 / 331, 1.0, True),
    "rotate": (30.0, 135.0, True),
    "brightness": (0.9, 0.99, True),
    "color": (0.9, 0.99, True),
    "contrast": (0.9, 0.99, True),
    "sharpness": (0.9, 0.99, True),
    "posterize": (4.0, 6.0, False),
    "solarize": (1.0, 1.0, False),
    "autocontrast": (0.0, 0.0, False),
    "equalize": (0.0, 0.0, False),
    "identity": (0.0, 0.0, False),
}
RANDAUGMENT = {name: strongest for name, (strongest, _, _) in STRENGTHS.items()}
TRIVIALAUGMENT = {name: strongest for name, (_, strongest, _) in STRENGTHS.items()}
MAX_MAGNITUDE = 30


class BatchPolicy:
    """Random operations on each image of a batch: uint8 (B, C, H, W) -> (B, C, H, W).

    Args:
        strongest: Strength of each operation at the highest magnitude.
        num_ops: Operations per image, one after the other.
        magnitude: Magnitude from 0 to 30; None draws one per image and operation.
    """

    def __init__(self, strongest: dict[str, float], num_ops: int, magnitude: int | None) -> None:
        self.operations = torch.tensor([OPERATIONS.index(name) for name in strongest])
        self.signed = torch.tensor([STRENGTHS[name][2] for name in strongest])
        self.strongest = torch.tensor([*strongest.values()])
        self.num_ops = num_ops
        self.magnitude = magnitude

    def __call__(self, images: Tensor) -> Tensor:
        """Apply ``num_ops`` random operations to each image."""
        b = len(images)
        for _ in range(self.num_ops):
            choice = torch.randint(len(self.operations), (b,))
            drawn = self.magnitude is None
            magnitudes = torch.randint(MAX_MAGNITUDE + 1, (b,)) if drawn else torch.full((b,), self.magnitude)
            signs = 1 - 2 * torch.randint(2, (b,))
            strengths = magnitudes / MAX_MAGNITUDE * self.strongest[choice]
            strengths = torch.where(self.signed[choice], strengths * signs, strengths)
            images = apply_operations(images, self.operations[choice], strengths)
        return images
