"""Control maps: they ignore the model, and every method must beat them.

Letters in the einops patterns: b batch, c image channels, r s grid rows and columns, y x pixel rows and columns.
"""

import torch
import torch.nn.functional as F
from einops import rearrange, reduce, repeat
from torch import Tensor

from vit.explain.maps.noise import draw_for_each
from vit.explain.maps.subject import Subject

SMOOTH = ((1.0, 2.0, 1.0), (2.0, 4.0, 2.0), (1.0, 2.0, 1.0))  # weights of a patch and its neighbours
SOBEL = ((-1.0, 0.0, 1.0), (-2.0, 0.0, 2.0), (-1.0, 0.0, 1.0))  # slope along a row


def random(subject: Subject, *, seed: int = 0) -> Tensor:
    """Return uniform noise, different for each image: -> (B, rows, columns).

    Args:
        subject: Model, images and score.
        seed: Seed of the noise.
    """
    return draw_for_each(subject.images, subject.grid, seed)


def uniform(subject: Subject) -> Tensor:
    """Return ones for all patches: -> (B, rows, columns)."""
    return subject.images.new_ones(len(subject.images), *subject.grid)


def center(subject: Subject) -> Tensor:
    """Return a Gaussian bell at the center: -> (B, rows, columns).

    Its deviation along n patches is that of (n + 1) / 4 patches.
    """
    rows, columns = (torch.linspace(-1, 1, size + 2)[1:-1] for size in subject.grid)
    bell = torch.exp(-2 * (rows[:, None] ** 2 + columns**2))
    return repeat(bell.to(subject.images), "r s -> b r s", b=len(subject.images))


@torch.no_grad()
def edges(subject: Subject) -> Tensor:
    """Return the mean slope of the pixels of each patch, an edge detector: -> (B, rows, columns).

    The slope is that of Sobel, over all channels. Maps that look like edges seem to explain a network that ignores them
    (Adebayo et al. 2018).
    """
    along_row = torch.tensor(SOBEL).to(subject.images)
    kernels = rearrange([along_row, along_row.T], "k y x -> k 1 y x")
    pixels = rearrange(subject.images, "b c y x -> (b c) 1 y x")
    slopes = F.conv2d(F.pad(pixels, (1, 1, 1, 1), mode="replicate"), kernels)  # the border is no edge
    return _mean_over_patches(subject, rearrange(slopes, "(b c) k y x -> b (c k) y x", b=len(subject.images)))


@torch.no_grad()
def deviation(subject: Subject) -> Tensor:
    """Return how far the pixels of each patch are from the mean colour of training images: -> (B, rows, columns).

    That colour is 0, because images are normalised. The mean of a batch would depend on its other images, and that of a
    single image would be the image itself.
    """
    return _mean_over_patches(subject, subject.images)


@torch.no_grad()
def ink(subject: Subject) -> Tensor:
    """Return how far the pixels around each patch are from the background of the image: -> (B, rows, columns).

    The background is the median of each channel of the image. The mean absolute deviation from it is smoothed over a
    patch and its neighbours, so that the map is highest where much ink lies together. There is no ink beyond the
    border: if its patches were repeated, ink at the border would count more than the same ink inside.
    """
    flat = rearrange(subject.images, "b c y x -> b c (y x)")
    background = rearrange(flat.median(dim=-1).values, "b c -> b c 1 1")
    deviations = reduce((subject.images - background).abs(), "b c y x -> b 1 y x", "mean")
    cells = rearrange(_mean_over_patches(subject, deviations), "b r s -> b 1 r s")
    weights = rearrange(torch.tensor(SMOOTH).to(cells) / 16, "r s -> 1 1 r s")
    return rearrange(F.conv2d(cells, weights, padding=1), "b 1 r s -> b r s")


def _mean_over_patches(subject: Subject, values: Tensor) -> Tensor:
    """Return the mean length of the vectors (B, K, H, W) at the pixels of each patch: -> (B, rows, columns)."""
    lengths = reduce(values**2, "b k y x -> b 1 y x", "sum").sqrt()
    return subject.sum_over_patches(lengths) / subject.sum_over_patches(torch.ones_like(lengths)).clamp(min=1)
