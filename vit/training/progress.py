"""How much of a training is done, by steps or by the clock."""

import math

from lightning import Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.strategies import Strategy


class Progress:
    """Share of a training that is done, by steps or by time, whichever is further.

    Args:
        trainer: The trainer, once training starts; None before, when nothing is done.
    """

    def __init__(self, trainer: Trainer | None = None) -> None:
        total_steps = math.inf if trainer is None else trainer.estimated_stepping_batches
        # Lightning says -1 where neither steps nor the batches of an epoch are limited.
        self.total_steps = total_steps if total_steps > 0 else math.inf
        callbacks = [] if trainer is None else trainer.callbacks
        timers = [callback for callback in callbacks if isinstance(callback, Timer)]
        self.timer = next((timer for timer in timers if timer._duration), None)

    @property
    def has_end(self) -> bool:
        """Whether there is a number of steps or a time after which training ends."""
        return math.isfinite(self.total_steps) or self.timer is not None

    def after(self, step: int, strategy: Strategy) -> float:
        """The share after ``step`` steps, in [0, 1], the same on all processes."""
        by_time = 0.0
        if self.timer is not None:
            # Processes must agree to the last bit, or their weights drift apart.
            by_time = strategy.broadcast(self.timer.time_elapsed()) / self.timer._duration
        return min(1.0, max(step / self.total_steps, by_time))
