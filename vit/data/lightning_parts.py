"""What data modules take from Lightning: their base class, and a decorator that lets only the first process print.

Without Lightning there is no Trainer, but images can still be read: for analysis, for features, and for a training loop
of your own.
"""

from collections.abc import Callable

try:
    from lightning import LightningDataModule
    from lightning.pytorch.utilities import rank_zero_only
except ModuleNotFoundError as error:
    if error.name != "lightning":
        raise

    class LightningDataModule:
        """The base class of data modules without a Trainer."""

        trainer = None

        def prepare_data(self) -> None:
            """Do nothing: there is nothing to prepare."""

        def save_hyperparameters(self) -> None:
            """Do nothing: there is no checkpoint to note them in."""

    def rank_zero_only(function: Callable) -> Callable:
        """Return the function: there is one process."""
        return function


__all__ = ["LightningDataModule", "rank_zero_only"]
