"""The progress bar of the command line."""

from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar


class ImagesPerSecondBar(RichProgressBar):
    """Lightning's rich progress bar, with the images per second."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=10)
        self.images_per_second = 0.0

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Return the logged values and the speed, without the version number of the run."""
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        speed = {"images/s": f"{self.images_per_second:,.0f}"} if self.images_per_second else {}
        return speed | metrics
