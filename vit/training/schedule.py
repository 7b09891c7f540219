"""The schedule of a training: its length, its progress, and the learning rate as a function of the progress."""

import math
from typing import Literal

from lightning import Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.strategies import Strategy

Decay = Literal["cosine", "linear", "constant"]


def learning_rate_factor(progress: float, warmup: float, decay: Decay) -> float:
    """Return the share of the peak learning rate at ``progress`` in [0, 1]: a linear warm-up, then a decay to zero.

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


class TrainingLength:
    """The length of a training that has started, in steps, in time, or both: the end is what comes first."""

    def __init__(self, trainer: Trainer) -> None:
        total_steps = trainer.estimated_stepping_batches
        # Lightning returns -1 if neither the steps nor the batches of an epoch are limited.
        self.total_steps = total_steps if total_steps > 0 else math.inf
        timers = [callback for callback in trainer.callbacks if isinstance(callback, Timer)]
        self.timer = next((timer for timer in timers if timer._duration), None)

    @property
    def has_end(self) -> bool:
        """Whether the number of steps or the time is limited."""
        return math.isfinite(self.total_steps) or self.timer is not None

    def progress(self, step: int, strategy: Strategy) -> float:
        """Return the share of the training that is done after ``step`` steps, in [0, 1], equal on all processes."""
        by_time = 0.0
        if self.timer is not None:
            # Processes must agree to the last bit, or their weights drift apart.
            by_time = strategy.broadcast(self.timer.time_elapsed()) / self.timer._duration
        return min(1.0, max(step / self.total_steps, by_time))
