"""Copies of one image in which one half of its tokens, the other half, or both are changed: where do changes arrive?

In this order: unchanged, one half changed, the other half changed, both changed, and unchanged again.
"""

import itertools
import math

import torch
from torch import Tensor

from vit.capture.experiments.moved import changes, rounding

COPIES = 5  # 6 of an image of 5 tokens, as an axis of 5 could count either


def num_copies(num_tokens: int) -> int:
    """Return how many copies of an image of ``num_tokens`` tokens an experiment passes."""
    return COPIES + (num_tokens == COPIES)


def drawn_half(count: int) -> Tensor:
    """Return which of N tokens are in a random half, always the same, (N,)."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0)) < count // 2


def separating_halves(count: int) -> list[Tensor]:
    """Return halves of N tokens, (N,) each, such that any two tokens are apart in at least one: the bits of numbers.

    >>> [half.int().tolist() for half in separating_halves(5)]
    [[1, 0, 1, 0, 1], [1, 1, 0, 0, 1], [1, 1, 1, 1, 0]]
    """
    return [(torch.arange(count) >> bit) % 2 == 0 for bit in range((count - 1).bit_length())]


def separating_both_ways(count: int) -> list[Tensor]:
    """Return halves of B > 1 images, (B,) each, such that for any two, each is once in a half without the other.

    Each image has its own set of halves, and all sets are of one size, so that none contains another.

    >>> [half.int().tolist() for half in separating_both_ways(5)]
    [[1, 1, 1, 0, 0], [1, 0, 0, 1, 1], [0, 1, 0, 1, 0], [0, 0, 1, 0, 1]]
    """
    number = next(number for number in itertools.count(2) if math.comb(number, number // 2) >= count)
    chosen = [*itertools.islice(itertools.combinations(range(number), number // 2), count)]
    return [torch.tensor([half in of_image for of_image in chosen]) for half in range(number)]


def is_unmixed(copies: Tensor) -> bool:
    """Return whether each number of a result (K, ...) depends on at most one half, and both halves change some."""
    one, other = changes(copies)[:2] > rounding(copies)
    return bool(one.any() and other.any()) and not is_mixed(copies)


def is_mixed(copies: Tensor) -> bool:
    """Return whether a number of a result (K, ...) depends on both halves."""
    one, other = changes(copies)[:2] > rounding(copies)
    return bool((one & other).any())
