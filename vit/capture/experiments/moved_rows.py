"""Tells which rows of attention belong to a query that differs between copies of an image.

Letters in the einops patterns: k copies of an image, h heads, n queries, m keys.
"""

import torch
from einops import reduce
from torch import Tensor

from vit.capture.experiments.moved import changes, rounding

FAINT = 1e-4  # of the largest move of a row: large scores round by more than their differences


def moved_rows(attn: Tensor, changed: int, still: Tensor) -> Tensor:
    """Return which rows of attention (K, H, N, M) are of a query that differs in copy number ``changed``, (N,).

    Scores of unchanged keys do not move in the row of an unchanged query. A softmax divides them by another sum, which
    does not change the ratio of two weights.

    Args:
        attn: The attention of copies of an image, of which the first and the last are equal.
        changed: Number of the copy.
        still: Which keys are unchanged in it, (M,).
    """
    weights, least = attn[[0, changed, -1]][..., still], torch.finfo(attn.dtype).tiny
    counted = (weights > least).all(dim=0, keepdim=True)  # not masked
    logs = torch.where(counted, weights.clamp(min=least).log(), 0)
    numbers = reduce(counted.to(attn), "k h n m -> k h n 1", "sum").clamp(min=1)
    ratios = torch.where(counted, logs - reduce(logs, "k h n m -> k h n 1", "sum") / numbers, 0)
    moves = reduce(changes(ratios)[0], "h n m -> n", "max")
    return moves > max(rounding(ratios), FAINT * moves.max().item())
