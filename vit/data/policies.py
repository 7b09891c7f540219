"""RandAugment and TrivialAugment on whole batches, with an operation and a strength of its own per image.

The operations and ranges are those of torchvision, whose transforms apply one operation to a whole batch.
Here the images of a batch that drew the same operation are processed together, with one strength each.
Letters in the einops patterns: b batch.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from vit.data.transfer import without_waiting

BINS = 31
Operation = Callable[[Tensor, Tensor], Tensor]


class BatchPolicy:
    """Apply random operations to a batch of uint8 images, (B, C, H, W) -> (B, C, H, W).

    Args:
        strongest: For each operation its strength at the highest magnitude; the sign is random where it matters.
        num_ops: Operations per image, one after the other.
        magnitude: Magnitude from 0 to 30; None draws one per image and operation.
    """

    def __init__(self, strongest: dict[str, float], num_ops: int, magnitude: int | None) -> None:
        self.strongest = strongest
        self.num_ops = num_ops
        self.magnitude = magnitude

    def __call__(self, images: Tensor) -> Tensor:
        """Augment each image with ``num_ops`` operations."""
        for _ in range(self.num_ops):
            images = self._one_operation_each(images)
        return images

    def _one_operation_each(self, images: Tensor) -> Tensor:
        b = images.shape[0]
        choice = torch.randint(len(self.strongest) + 1, (b,))  # the last one leaves the image as it is
        level = torch.randint(BINS, (b,)) if self.magnitude is None else torch.full((b,), self.magnitude)
        sign = 1 - 2 * torch.randint(2, (b,))
        result = images.clone()
        for number, (name, most) in enumerate(self.strongest.items()):
            chosen = (choice == number).nonzero().squeeze(1)
            if len(chosen) == 0:
                continue
            strength = level[chosen] / (BINS - 1) * most
            if name in SIGNED:
                strength = strength * sign[chosen]
            chosen, strength = (without_waiting(tensor, images.device) for tensor in (chosen, strength))
            result[chosen] = OPERATIONS[name](images[chosen], strength)
        return result


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


def _affine(images: Tensor, rows: list[list[Tensor]]) -> Tensor:
    """Fetch each pixel (x, y) from ``rows @ (x, y, 1)``, in pixels from the centre; zero from outside."""
    _, _, h, w = images.shape
    theta = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
    x = torch.arange(w, device=images.device) - (w - 1) / 2
    y = torch.arange(h, device=images.device) - (h - 1) / 2
    places = torch.stack([*torch.meshgrid(x, y, indexing="xy"), torch.ones(h, w, device=images.device)], dim=-1)
    source = einsum(theta, places, "b i j, h w j -> b h w i")
    # grid_sample counts from -1 to 1 between the outer borders of the outermost pixels.
    grid = torch.stack([source[..., 0] / (w / 2), source[..., 1] / (h / 2)], dim=-1)
    return F.grid_sample(images.float(), grid, mode="nearest", align_corners=False).to(images.dtype)


def _shear_x(images: Tensor, strength: Tensor) -> Tensor:
    one, zero = torch.ones_like(strength), torch.zeros_like(strength)
    # Sheared about the top border and not the centre, as in AutoAugment.
    return _affine(images, [[one, strength, strength * images.shape[-2] / 2], [zero, one, zero]])


def _shear_y(images: Tensor, strength: Tensor) -> Tensor:
    one, zero = torch.ones_like(strength), torch.zeros_like(strength)
    return _affine(images, [[one, zero, zero], [strength, one, strength * images.shape[-1] / 2]])


def _translate_x(images: Tensor, strength: Tensor) -> Tensor:
    one, zero = torch.ones_like(strength), torch.zeros_like(strength)
    return _affine(images, [[one, zero, -(strength * images.shape[-1]).trunc()], [zero, one, zero]])


def _translate_y(images: Tensor, strength: Tensor) -> Tensor:
    one, zero = torch.ones_like(strength), torch.zeros_like(strength)
    return _affine(images, [[one, zero, zero], [zero, one, -(strength * images.shape[-2]).trunc()]])


def _rotate(images: Tensor, strength: Tensor) -> Tensor:
    cos, sin, zero = strength.deg2rad().cos(), strength.deg2rad().sin(), torch.zeros_like(strength)
    return _affine(images, [[cos, -sin, zero], [sin, cos, zero]])


def _blend(images: Tensor, other: Tensor | float, strength: Tensor) -> Tensor:
    """Move each image away from ``other`` by a factor of 1 + strength."""
    factor = rearrange(1 + strength, "b -> b 1 1 1")
    return (images * factor + other * (1 - factor)).clamp(0, 255).to(images.dtype)


def _grey(images: Tensor) -> Tensor:
    return images if images.shape[1] == 1 else tv.rgb_to_grayscale(images)


def _sharpness(images: Tensor, strength: Tensor) -> Tensor:
    return _blend(images, tv.adjust_sharpness(images, 0.0).float(), strength)


def _contrast(images: Tensor, strength: Tensor) -> Tensor:
    return _blend(images, _grey(images).float().mean(dim=(1, 2, 3), keepdim=True), strength)


def _posterize(images: Tensor, strength: Tensor) -> Tensor:
    dropped_bits = strength.round().int()
    mask = (255 >> dropped_bits << dropped_bits).to(images.dtype)
    return images & rearrange(mask, "b -> b 1 1 1")


def _solarize(images: Tensor, strength: Tensor) -> Tensor:
    threshold = rearrange(255 * (1 - strength), "b -> b 1 1 1")
    return torch.where(images >= threshold, 255 - images, images)


SIGNED = {
    *("shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
    *("brightness", "color", "contrast", "sharpness"),
}
OPERATIONS: dict[str, Operation] = {
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
    "rotate": _rotate,
    "brightness": lambda images, strength: _blend(images, 0.0, strength),
    "color": lambda images, strength: _blend(images, _grey(images), strength),
    "contrast": _contrast,
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": lambda images, _: tv.autocontrast(images),
    "equalize": lambda images, _: tv.equalize(images),
}
