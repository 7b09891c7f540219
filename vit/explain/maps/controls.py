"""Maps that know nothing of the model, which every other map must beat.

Letters in the einops patterns: b batch, r s grid rows and columns.
"""

import torch
from einops import repeat
from torch import Tensor

from vit.explain.maps.subject import Subject


def random(subject: Subject, *, seed: int = 0) -> Tensor:
    """Uniform noise: -> (B, rows, columns).

    Args:
        subject: Model, images and question.
        seed: Seed of the noise.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(len(subject.images), *subject.grid, generator=generator).to(subject.images)


def uniform(subject: Subject) -> Tensor:
    """The same for every patch: -> (B, rows, columns)."""
    return subject.images.new_ones(len(subject.images), *subject.grid)


def center(subject: Subject) -> Tensor:
    """A bell in the middle, where photographers put things, a quarter of the side wide: -> (B, rows, columns)."""
    rows, columns = (torch.linspace(-1, 1, size + 2)[1:-1] for size in subject.grid)
    bell = torch.exp(-2 * (rows[:, None] ** 2 + columns**2))
    return repeat(bell.to(subject.images), "r s -> b r s", b=len(subject.images))
