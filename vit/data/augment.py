"""Augmentation of whole batches on the training device, with a choice of its own for each image.

torchvision's transforms draw one choice per call: a batch would be shifted as one, and image by image they are
slower. Images per second on 2 CPU cores (AMD EPYC, 2026-11-22, benchmarks/pipeline.py): crop and flip 210,000 here,
13,100 on tensors and 7,200 on PIL images by two workers there; with RandAugment 53,200, 5,000 and 3,900. So what
changes pixels is written by hand, and mixing two images, where one choice per batch is the published recipe, is
torchvision's.

Random choices are drawn from torch's global CPU generator, whatever the device of the images; the loaders
seed it. Letters in the einops patterns: b batch, c channels, h w rows and columns.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from einops import rearrange, repeat
from torch import Tensor
from torchvision.transforms import v2

from vit.data.operations import in_pieces
from vit.data.policies import RandAugment, TrivialAugment
from vit.data.transfer import without_waiting


class Augment:
    """The whole chain: crop and flip, a colour-and-shape policy, erasing, then mixing of images and labels.

    Args:
        num_classes: Classes, for the soft targets of mixing.
        crop_padding: Pixels by which an image is shifted at most, its border filled by reflection.
        flip: Whether an image is mirrored left to right with probability 1/2.
        policy: "randaugment" (two operations of magnitude 9), "trivialaugment" (one of any magnitude) or "none".
        erasing: Probability that a rectangle of an image is erased.
        mixup: Parameter of the Beta distribution of mixup; 0 leaves it out.
        cutmix: Parameter of the Beta distribution of cutmix; 0 leaves it out. With both, a batch gets one of them.
        mixing: Asked before each batch whether it is to be mixed, as mixing may end before the training does.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        crop_padding: int = 0,
        flip: bool = False,
        policy: Literal["none", "randaugment", "trivialaugment"] = "none",
        erasing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        mixing: Callable[[], bool] = lambda: True,
    ) -> None:
        self.crop_padding = crop_padding
        self.flip = flip
        self.policy = {"none": None, "randaugment": RandAugment(), "trivialaugment": TrivialAugment()}[policy]
        self.erasing = erasing
        self.mixing = mixing
        self.mixes: list[v2.Transform] = []
        if mixup > 0:
            self.mixes.append(v2.MixUp(alpha=float(mixup), num_classes=num_classes))
        if cutmix > 0:
            self.mixes.append(v2.CutMix(alpha=float(cutmix), num_classes=num_classes))

    def change(self, images: Tensor) -> Tensor:
        """Crop and flip, policy and erasing, of each image by itself: (B, C, H, W) -> (B, C, H, W), both uint8."""
        if self.crop_padding or self.flip:
            images = crop_and_flip(images, self.crop_padding, self.flip)
        if self.policy is not None:
            images = self.policy(images)
        if self.erasing > 0:
            images = erase(images, self.erasing)
        return images

    def mix(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mix the images of a batch, if it is to be mixed: then both are float, and labels (B,) -> (B, classes)."""
        if self.mixes and self.mixing():
            mix = self.mixes[int(torch.randint(len(self.mixes), ()))]
            images, labels = mix(images.float() / 255, labels)
        return images, labels


def crop_and_flip(images: Tensor, padding: int, flip: bool) -> Tensor:
    """Shift each image by up to ``padding`` pixels over its reflected border, and mirror half of them.

    A gather does both: (B, C, H, W) -> (B, C, H, W).

    Raises:
        ValueError: If the reflection would be wider than the image.
    """
    b, _, h, w = images.shape
    if padding >= min(h, w):
        raise ValueError(f"crop_padding ({padding}) must be smaller than the image ({h}, {w}): use a quarter of it")
    rows = torch.arange(h) + torch.randint(-padding, padding + 1, (b, 1))
    columns = torch.arange(w) + torch.randint(-padding, padding + 1, (b, 1))
    if flip:
        columns = torch.where(torch.rand(b, 1) < 0.5, columns.flip(1), columns)
    rows, columns = (without_waiting(_reflect(*each), images.device) for each in ((rows, h), (columns, w)))
    return torch.cat([_fetch(*piece) for piece in in_pieces(images, rows, columns)])


def _fetch(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    _, c, h, w = images.shape
    places = rearrange(rows * w, "b h -> b h 1") + rearrange(columns, "b w -> b 1 w")
    # gather takes one index for all channels without copying it: six times as fast as indexing by a tensor for each.
    places = repeat(places, "b h w -> b c (h w)", c=c)
    moved = rearrange(images, "b c h w -> b c (h w)").gather(2, places)
    return rearrange(moved, "b c (h w) -> b c h w", h=h)


def _reflect(places: Tensor, length: int) -> Tensor:
    """Fold places outside [0, length) back inside, as a mirror at the border pixels does.

    >>> _reflect(torch.arange(-2, 6), 4)
    tensor([2, 1, 0, 1, 2, 3, 2, 1])
    """
    places = places.abs()
    return torch.where(places >= length, 2 * (length - 1) - places, places)


def erase(images: Tensor, probability: float, area: tuple[float, float] = (0.02, 0.33)) -> Tensor:
    """Set a random rectangle of some images to zero (Zhong et al. 2020): (B, C, H, W) -> (B, C, H, W).

    The rectangle covers a share of the image within ``area``, with an aspect ratio from 0.3 to 1 / 0.3.
    """
    b, _, h, w = images.shape
    share = torch.empty(b).uniform_(*area) * h * w
    aspect = torch.empty(b).uniform_(math.log(0.3), -math.log(0.3)).exp()
    chosen = torch.rand(b) < probability
    inside = []
    for length, extent in ((h, (share * aspect).sqrt()), (w, (share / aspect).sqrt())):
        extent = extent.round().clamp(max=length) * chosen
        start = (torch.rand(b) * (length - extent + 1)).floor()
        place = torch.arange(length)
        inside.append((place >= start[:, None]) & (place < (start + extent)[:, None]))
    rectangle = rearrange(inside[0], "b h -> b 1 h 1") & rearrange(inside[1], "b w -> b 1 1 w")
    return images.masked_fill(without_waiting(rectangle, images.device), 0)
