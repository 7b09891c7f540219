"""Tells how a result of a function holds the tokens of copies of an image, and reads them by token.

Letters in the einops patterns: k copies of an image, r the rest of their axis, n tokens, d channels of a token, c all
other axes, y x rows and columns of patches.
"""

from typing import Any

from einops import rearrange, reduce
from torch import Tensor

from vit.capture.experiments.moved import changes, rounding

# Axes of tokens before the first layer, and the same as (copies, tokens, channels).
SEQUENCE = "k n d"
LAYOUTS = {SEQUENCE: SEQUENCE, "n k d": SEQUENCE, "k d y x": "k (y x) d", "k y x d": "k (y x) d"}


def other_layout(result: Tensor, copies: int, lengths: set[int]) -> str | None:
    """Return the layout of tokens that are a map, or stand first; None of others.

    >>> import torch
    >>> other_layout(torch.zeros(5, 12, 3, 5), 5, {15}), other_layout(torch.zeros(15, 5, 12), 5, {15})
    ('k d y x', 'n k d')
    """
    if result.ndim == 3:
        return "n k d" if result.shape[0] in lengths and result.shape[1] == copies else None
    if result.ndim != 4 or result.shape[0] != copies:
        return None
    _, first, second, third = result.shape
    channels_last = "k y x d" if first * second in lengths else None
    return "k d y x" if second * third in lengths else channels_last


def is_flattened_map(given: Any, result: Tensor) -> bool:
    """Return whether a result (K, D, rows * columns) is a map of patches (K, D, rows, columns), its channels first."""
    is_map = isinstance(given, Tensor) and given.ndim == 4 and given.shape[:2] == result.shape[:2]
    return is_map and given.shape[2] * given.shape[3] == result.shape[2]


def by_token(result: Tensor, copies: int, lengths: set[int], heads_first: bool) -> Tensor | None:
    """Return a result by token, (K, N, everything else), or None if no axis, or more than one, counts tokens.

    There may be as many tokens as channels: then (K, N, D) is taken for copies and tokens, unless only its last axis
    keeps the halves apart, as it does in the transpose.
    """
    if result.ndim < 3:
        return None
    axes = [axis for axis, size in enumerate(result.shape) if size in lengths]
    if result.ndim == 3 and result.shape[0] == copies and result.shape[1] in lengths:
        is_transposed = len(axes) == 2 and not _are_apart(result) and _are_apart(result.mT)
        axes = [2] if is_transposed else [1]
    if len(axes) != 1 or result.numel() == copies * result.shape[axes[0]]:
        return None
    batch = next((axis for axis in (0, 1) if axis not in axes and result.shape[axis] % copies == 0), None)
    if batch is None:
        return None
    names = [f"a{axis}" for axis in range(result.ndim)]
    names[batch], names[axes[0]] = "(r k)" if heads_first else "(k r)", "n"
    others = " ".join(name for name in names if name.startswith("a"))
    return rearrange(result, f"{' '.join(names)} -> k n (r {others})", k=copies)


def _are_apart(tokens: Tensor) -> bool:
    """Return whether no token (K, N, D) depends on both halves."""
    one, other = reduce(changes(tokens)[:2], "k n c -> k n", "max") > rounding(tokens)
    return not (one & other).any()
