"""Control maps (random, uniform, center): they ignore the model, and every method must beat them.

Letters in the einops patterns: b batch, r s grid rows and columns.
"""

import torch
from einops import repeat
from torch import Tensor

from vit.explain.maps.noise import draw_for_each
from vit.explain.maps.subject import Subject


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
    """Return a Gaussian bell at the center, with a deviation of a quarter of the side: -> (B, rows, columns)."""
    rows, columns = (torch.linspace(-1, 1, size + 2)[1:-1] for size in subject.grid)
    bell = torch.exp(-2 * (rows[:, None] ** 2 + columns**2))
    return repeat(bell.to(subject.images), "r s -> b r s", b=len(subject.images))
