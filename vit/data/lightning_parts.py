"""What data modules take from Lightning: their base class, and the rule that one of several processes prints.

Without Lightning there is no Trainer, and images are read all the same: for analysis, for features, and for a loop of
one's own.
"""

from collections.abc import Callable

try:
    from lightning import LightningDataModule
    from lightning.pytorch.utilities import rank_zero_only
except ModuleNotFoundError as error:
    if error.name != "lightning":
        raise

    class LightningDataModule:
        """The base class of data modules that no Trainer takes."""

        trainer = None

        def prepare_data(self) -> None:
            """Do nothing: there is nothing to prepare."""

        def save_hyperparameters(self) -> None:
            """Do nothing: there is no checkpoint to note them in."""

    def rank_zero_only(function: Callable) -> Callable:
        """Return the function: there is one process."""
        return function


__all__ = ["LightningDataModule", "rank_zero_only"]
