"""The course of the learning rate, as a function of how much of the training is done."""

import math
from typing import Literal

Decay = Literal["cosine", "linear", "constant"]


def learning_rate_factor(progress: float, warmup: float, decay: Decay) -> float:
    """Share of the peak learning rate at ``progress`` in [0, 1]: a linear warm-up, then a decay to zero.

    >>> [round(learning_rate_factor(p, warmup=0.2, decay="cosine"), 3) for p in (0.0, 0.1, 0.2, 0.6, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    >>> [round(learning_rate_factor(p, warmup=0.2, decay="linear"), 3) for p in (0.1, 0.2, 0.8, 1.0)]
    [0.5, 1.0, 0.25, 0.0]
    """
    if progress < warmup:
        return progress / warmup
    if decay == "constant":
        return 1.0
    rest = min(1.0, (progress - warmup) / (1.0 - warmup))
    return 1.0 - rest if decay == "linear" else (1.0 + math.cos(math.pi * rest)) / 2
