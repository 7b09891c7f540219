"""Views of whole batches: random crops of several sizes, each distorted in colour, with random choices per image.

Random choices come from torch's global CPU generator on any device, as those of ``vit.data.augment``. Letters in the
einops patterns: b batch, c channels, h w rows and columns, o p those of the result.
"""

import torch
from einops import einsum, rearrange
from torch import Tensor

from vit.data.augment import crop_and_flip
from vit.data.crops import random_resized_crop
from vit.data.device_copy import copy_async
from vit.data.operations import OPERATIONS, apply_operations
from vit.support.checks import check_natural, check_positive_int, check_share_range

# Close to DINO (Caron et al. 2021) and BYOL, but without a change of hue, and alike for all views. There, only the
# second large view is solarised, and the first one is always blurred, the second one with 0.1.
JITTERED, GREYED, SOLARISED, BLURRED = 0.8, 0.2, 0.2, 0.5  # probabilities
JITTER = {"brightness": 0.4, "contrast": 0.4, "color": 0.2}  # largest change of each factor
SIGMAS = (0.1, 2.0)  # of the blur in pixels, if the shorter side has SIGMA_SIDE or more; else proportionally less
SIGMA_SIDE = 64


class Views:
    """Cuts several views out of each image: large ones at the size of the images, and small ones at a smaller size.

    >>> views = Views(local_views=4)
    >>> [view.shape for view in views(torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8), (16, 16))][1:3]
    [torch.Size([2, 3, 32, 32]), torch.Size([2, 3, 16, 16])]

    Args:
        global_views: Number of large views.
        local_views: Number of small views.
        global_scale: Smallest and largest share of the image that a large view shows.
        local_scale: Smallest and largest share of the image that a small view shows.
        flip: Whether each view is mirrored with probability 1/2.
        distort: Whether each view is changed in colour, made grey, solarised and blurred, each at random.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        global_views: int = 2,
        local_views: int = 4,
        global_scale: tuple[float, float] = (0.4, 1.0),
        local_scale: tuple[float, float] = (0.1, 0.4),
        flip: bool = True,
        distort: bool = True,
    ) -> None:
        check_positive_int("global_views", global_views, "2 is usual")
        check_natural("local_views", local_views, "4 is usual, 0 takes large views alone")
        check_share_range("global_scale", global_scale, "(0.4, 1.0) is usual")
        check_share_range("local_scale", local_scale, "(0.1, 0.4) is usual")
        self.global_views = global_views
        self.local_views = local_views
        self.global_scale = global_scale
        self.local_scale = local_scale
        self.flip = flip
        self.distort = distort

    def __call__(self, images: Tensor, local_size: tuple[int, int]) -> list[Tensor]:
        """Cut the views, large ones first: uint8 (B, C, H, W) -> uint8, each (B, C, H, W) or (B, C, *local_size)."""
        size = (images.shape[2], images.shape[3])
        kinds = [(self.global_scale, size)] * self.global_views + [(self.local_scale, local_size)] * self.local_views
        return [self._view(images, scale, of_view) for scale, of_view in kinds]

    def _view(self, images: Tensor, scale: tuple[float, float], size: tuple[int, int]) -> Tensor:
        view = random_resized_crop(images, scale, size)
        if self.flip:
            view = crop_and_flip(view, 0, True)
        return distort(view) if self.distort else view


def distort(images: Tensor) -> Tensor:
    """Change colours, make grey, solarise and blur, each image at random: uint8 (B, C, H, W) -> the same."""
    count = len(images)
    is_jittered = torch.rand(count) < JITTERED
    for name, largest in JITTER.items():
        images = _apply(images, name, is_jittered, torch.empty(count).uniform_(-largest, largest))
    images = _apply(images, "color", torch.rand(count) < GREYED, torch.full((count,), -1.0))
    images = _apply(images, "solarize", torch.rand(count) < SOLARISED, torch.full((count,), 0.5))
    sigmas = torch.empty(count).uniform_(*SIGMAS) * min(1.0, min(images.shape[-2:]) / SIGMA_SIDE)
    return blur_each(images, sigmas.where(torch.rand(count) < BLURRED, 0))


def _apply(images: Tensor, name: str, chosen: Tensor, strengths: Tensor) -> Tensor:
    """Apply an operation to the chosen images."""
    operations = torch.where(chosen, OPERATIONS.index(name), OPERATIONS.index("identity"))
    return apply_operations(images, operations, strengths)


def blur_each(images: Tensor, sigmas: Tensor) -> Tensor:
    """Blur each image by a Gaussian of its own width in pixels, 0 for none: uint8 (B, C, H, W), (B,) -> the same.

    Pixels beyond the border do not count; the weights of the pixels inside still sum to one.
    """
    sigmas = copy_async(sigmas, images.device)
    rows, columns = (_gaussian(length, sigmas) for length in images.shape[-2:])
    blurred = einsum(rows, images.float(), "b o h, b c h w -> b c o w")
    blurred = einsum(columns, blurred, "b p w, b c o w -> b c o p")
    # Convert to int first: float to uint8 takes three times as long.
    return blurred.round_().int().to(images.dtype)


def _gaussian(length: int, sigmas: Tensor) -> Tensor:
    """Return the weight of each pixel of an axis in each blurred one: (B,) -> (B, length, length). Rows sum to one."""
    places = torch.arange(float(length), device=sigmas.device)
    distances = rearrange(places, "o -> o 1") - places
    # Without the limit, which changes no pixel, a width of 0 would give 0 / 0 on the diagonal.
    weights = (-(distances**2) / (2 * rearrange(sigmas.clamp(min=1e-3), "b -> b 1 1") ** 2)).exp()
    return weights / weights.sum(dim=2, keepdim=True)
