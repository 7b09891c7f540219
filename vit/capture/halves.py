"""Copies of one image in which one half of its tokens, the other half, or both are changed: where do changes arrive?

In this order: unchanged, one half changed, the other half changed, both changed, and unchanged again.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vit.capture.moved import changes, rounding

COPIES = 5  # 6 of an image of 5 tokens, as an axis of 5 could count either


def num_copies(num_tokens: int) -> int:
    """Return how many copies of an image of ``num_tokens`` tokens an experiment passes."""
    return COPIES + (num_tokens == COPIES)


# Each returns which of N tokens are in one half, (N,).
HALVES: tuple[Callable[[int], Tensor], ...] = (
    lambda count: torch.randperm(count, generator=torch.Generator().manual_seed(0)) < count // 2,
    lambda count: torch.arange(count) % 2 == 0,
    lambda count: torch.arange(count) // 2 % 2 == 0,
    lambda count: torch.arange(count) // 4 % 2 == 0,
)


def is_unmixed(copies: Tensor) -> bool:
    """Return whether each number of a result (K, ...) depends on at most one half, and both halves change some."""
    one, other = changes(copies)[:2] > rounding(copies)
    return bool(one.any() and other.any()) and not is_mixed(copies)


def is_mixed(copies: Tensor) -> bool:
    """Return whether a number of a result (K, ...) depends on both halves."""
    one, other = changes(copies)[:2] > rounding(copies)
    return bool((one & other).any())
