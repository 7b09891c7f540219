"""Augmentation of whole batches on the training device, with random choices per image.

torchvision's transforms draw one choice per call, so they would shift all images of a batch alike. One call per image
is slower; benchmarks/results/pipeline.md has the images per second of both. Mixup and cutmix are torchvision's, because
the published recipes draw one choice per batch.

Random choices come from torch's global CPU generator on any device; the loaders seed it.
Letters in the einops patterns: b batch, c channels, h w rows and columns.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from einops import rearrange, repeat
from torch import Tensor
from torchvision.transforms import v2

from vit.data.crops import random_resized_crop
from vit.data.device_copy import copy_async
from vit.data.operations import split_for_cache
from vit.data.policies import RANDAUGMENT, TRIVIALAUGMENT, BatchPolicy
from vit.data.seeding import seeded

Flip = bool | Literal["alternate"]


class Augment:
    """The augmentation of training batches: crops and flip, a policy, erasing, then mixup or cutmix.

    The other options are those of ``ImageDataModule``. With mixup and cutmix, each batch gets one of them.

    Args:
        num_classes: Number of classes, for the soft targets of mixup and cutmix.
        crop_size: Rows and columns to which random crops are scaled; None for those of the images.
        mixing: Is called before each batch, and returns whether to mix it.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        crop_scale: tuple[float, float] | None = None,
        crop_size: tuple[int, int] | None = None,
        crop_padding: int = 0,
        flip: Flip = False,
        policy: Literal["none", "randaugment", "trivialaugment"] = "none",
        policy_from: int = 0,
        erasing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        mixing: Callable[[], bool] = lambda: True,
    ) -> None:
        self.crop_scale = crop_scale
        self.crop_size = crop_size
        self.crop_padding = crop_padding
        self.flip = flip
        self.policy = {
            "none": None,
            "randaugment": BatchPolicy(RANDAUGMENT, num_ops=2, magnitude=9),
            "trivialaugment": BatchPolicy(TRIVIALAUGMENT, num_ops=1, magnitude=None),
        }[policy]
        self.policy_from = policy_from
        self.erasing = erasing
        self.mixing = mixing
        self.mixes: list[v2.Transform] = []
        if mixup > 0:
            self.mixes.append(v2.MixUp(alpha=float(mixup), num_classes=num_classes))
        if cutmix > 0:
            self.mixes.append(v2.CutMix(alpha=float(cutmix), num_classes=num_classes))

    def change(self, images: Tensor, epoch: int = 0, mirrored: Tensor | None = None) -> Tensor:
        """Crop, flip, apply the policy and erase, each image by itself: uint8 (B, C, H, W) -> uint8 (B, C, h, w).

        Args:
            images: Images of one size.
            epoch: Number of the epoch, from 0 on.
            mirrored: Which images are mirrored if ``flip`` is "alternate", boolean (B,).
        """
        if self.crop_scale is not None:
            images = random_resized_crop(images, self.crop_scale, self.crop_size or (images.shape[2], images.shape[3]))
        if self.crop_padding or self.flip:
            images = crop_and_flip(images, self.crop_padding, self.flip if mirrored is None else mirrored)
        if self.policy is not None and epoch >= self.policy_from:
            images = self.policy(images)
        if self.erasing > 0:
            images = erase(images, self.erasing)
        return images

    def mix(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mix images and labels, (B,) or (B, classes), if ``mixing()``: -> float (B, C, H, W), (B, classes)."""
        if self.mixes and self.mixing():
            mix = self.mixes[int(torch.randint(len(self.mixes), ()))]
            images, labels = mix(images.float() / 255, labels)
        return images, labels


def alternate_flips(num_images: int, seed: int, epoch: int) -> Tensor:
    """Return which images are mirrored in an epoch, (N,): drawn for the first epoch, inverted in every second one.

    Any two epochs in a row then show every image both ways. With independent draws, they would show half of the images
    the same way twice (Jordan 2024, airbench).

    >>> first, second = alternate_flips(1000, 0, 0), alternate_flips(1000, 0, 1)
    >>> 400 < int(first.sum()) < 600, bool((first != second).all())
    (True, True)
    """
    with seeded(seed):
        drawn = torch.rand(num_images) < 0.5
    return drawn ^ (epoch % 2 == 1)


def crop_and_flip(images: Tensor, padding: int, flip: bool | Tensor) -> Tensor:
    """Shift each image by up to ``padding`` pixels over its reflected border, and mirror some.

    One gather does both: (B, C, H, W) -> (B, C, H, W).

    Args:
        images: Images of one size.
        padding: Largest shift.
        flip: True to mirror each image with probability 1/2, or which images to mirror, boolean (B,).

    Raises:
        ValueError: If ``padding`` is not smaller than the image.
    """
    b, _, h, w = images.shape
    if padding >= min(h, w):
        raise ValueError(f"crop_padding ({padding}) must be smaller than the image ({h}, {w}): use a quarter of it")
    rows = torch.arange(h) + torch.randint(-padding, padding + 1, (b, 1))
    columns = torch.arange(w) + torch.randint(-padding, padding + 1, (b, 1))
    if flip is not False:
        mirrored = torch.rand(b, 1) < 0.5 if flip is True else rearrange(flip, "b -> b 1")
        columns = torch.where(mirrored, columns.flip(1), columns)
    rows, columns = (copy_async(_reflect(*each), images.device) for each in ((rows, h), (columns, w)))
    return torch.cat([_gather(*chunk) for chunk in split_for_cache(images, rows, columns)])


def _gather(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    _, c, h, w = images.shape
    indices = rearrange(rows * w, "b h -> b h 1") + rearrange(columns, "b w -> b 1 w")
    # gather shares an expanded index between channels without a copy: six times as fast as indexing by tensors.
    indices = repeat(indices, "b h w -> b c (h w)", c=c)
    gathered = rearrange(images, "b c h w -> b c (h w)").gather(2, indices)
    return rearrange(gathered, "b c (h w) -> b c h w", h=h)


def _reflect(indices: Tensor, length: int) -> Tensor:
    """Reflect indices outside [0, length) at the border pixels.

    >>> _reflect(torch.arange(-2, 6), 4)
    tensor([2, 1, 0, 1, 2, 3, 2, 1])
    """
    indices = indices.abs()
    return torch.where(indices >= length, 2 * (length - 1) - indices, indices)


def erase(images: Tensor, probability: float, area: tuple[float, float] = (0.02, 0.33)) -> Tensor:
    """Set a random rectangle of each image to zero with ``probability`` (Zhong et al. 2020): (B, C, H, W) -> the same.

    The rectangle covers a share of the image within ``area``; its aspect ratio is from 0.3 to 1 / 0.3.
    """
    b, _, h, w = images.shape
    share = torch.empty(b).uniform_(*area) * h * w
    aspect = torch.empty(b).uniform_(math.log(0.3), -math.log(0.3)).exp()
    chosen = torch.rand(b) < probability
    inside = []
    for length, extent in ((h, (share * aspect).sqrt()), (w, (share / aspect).sqrt())):
        extent = extent.round().clamp(max=length) * chosen
        start = (torch.rand(b) * (length - extent + 1)).floor()
        index = torch.arange(length)
        inside.append((index >= start[:, None]) & (index < (start + extent)[:, None]))
    rectangle = rearrange(inside[0], "b h -> b 1 h 1") & rearrange(inside[1], "b w -> b 1 1 w")
    return images.masked_fill(copy_async(rectangle, images.device), 0)
