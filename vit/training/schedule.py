"""The schedule of a training: its length, its progress, and the learning rate as a function of the progress."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from lightning import Trainer
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.strategies import Strategy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

Decay = Literal["cosine", "linear", "constant"]
# Entries of a parameter group that the command line sets. The other entries are state of the optimiser.
SETTINGS = ("initial_lr", "weight_decay", "betas")


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


class ProgressSchedule(LambdaLR):
    """Scales learning rates by a factor that follows the progress of a training, not the number of steps.

    Args:
        optimizer: The optimiser, whose groups have their peak learning rates.
        factor: Returns the share of the peak; its argument is not used.
        lr: The learning rate from which those of the groups were computed.
    """

    def __init__(self, optimizer: Optimizer, factor: Callable[[int], float], lr: float) -> None:
        super().__init__(optimizer, factor)
        self.lr = lr
        for group in optimizer.param_groups:  # the warm-up has made it 0: a user's own schedule would start there
            group["lr"] = group["initial_lr"]
        self.settings = [{name: group[name] for name in SETTINGS if name in group} for group in optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the settings: after a resume, the current ones apply."""
        return {name: value for name, value in super().state_dict().items() if name not in ("lr", "settings")}

    def restore_settings(self, lr: float) -> None:
        """Set the current learning rates, weight decay and betas, even if a checkpoint has brought back its own.

        If ``lr`` was changed, as Lightning's LearningRateFinder does, the rates of the groups are scaled with it.
        """
        for settings in self.settings if lr != self.lr else ():
            settings["initial_lr"] *= lr / self.lr
        self.lr = lr
        self.base_lrs = [settings["initial_lr"] for settings in self.settings]
        for group, settings, factor in zip(self.optimizer.param_groups, self.settings, self.lr_lambdas, strict=True):
            group.update(settings, lr=settings["initial_lr"] * factor(self.last_epoch))


class TrainingLength:
    """The length of a training that has started, in steps, in time, or both: the end is what comes first."""

    def __init__(self, trainer: Trainer) -> None:
        total_steps = trainer.estimated_stepping_batches
        # Lightning returns -1 if neither the steps nor the batches of an epoch are limited.
        self.total_steps = total_steps if total_steps > 0 else math.inf
        self.epoch_steps = math.inf
        if trainer.max_steps != total_steps and math.isfinite(self.total_steps):  # epochs are the limit
            self.epoch_steps = total_steps // max(trainer.max_epochs, 1)
        self.shift = 0
        timers = [callback for callback in trainer.callbacks if isinstance(callback, Timer)]
        self.timer = next((timer for timer in timers if timer._duration), None)

    @property
    def has_end(self) -> bool:
        """Whether the number of steps or the time is limited."""
        return math.isfinite(self.total_steps) or self.timer is not None

    def state_dict(self) -> dict[str, float]:
        """Return what a resumed training needs to continue: the steps of an epoch, and the shift of the count."""
        return {"epoch_steps": self.epoch_steps, "shift": self.shift}

    def continue_from(self, before: Mapping[str, float], step: int) -> None:
        """Continue to count after ``step`` steps, if an epoch had another number of steps before.

        Half of the epochs are half of the training, whatever the number of processes and the batch size were.
        """
        if math.isinf(self.epoch_steps) or math.isinf(before["epoch_steps"]):
            return
        self.shift = round((step + before["shift"]) * self.epoch_steps / before["epoch_steps"]) - step

    def check_end(self, shares: list[str]) -> None:
        """Check that a training has an end if there are settings that are a share of it.

        Raises:
            ValueError: If it has none.
        """
        if shares and not self.has_end:
            raise ValueError(
                f"training has no end that {', '.join(shares)} could be a share of: set trainer.max_epochs, max_steps "
                "or max_time"
            )

    def progress(self, step: int, strategy: Strategy) -> float:
        """Return the share of the training that is done after ``step`` steps, in [0, 1], equal on all processes."""
        by_time = 0.0
        if self.timer is not None:
            # Processes must agree to the last bit, or their weights drift apart.
            by_time = strategy.broadcast(self.timer.time_elapsed()) / self.timer._duration
        return min(1.0, max((step + self.shift) / self.total_steps, by_time))
