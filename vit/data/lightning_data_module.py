"""The base class of data modules.

Without Lightning there is no Trainer, but images can still be read: for analysis, for features, and for a training loop
of your own.
"""

try:
    from lightning import LightningDataModule
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


__all__ = ["LightningDataModule"]
