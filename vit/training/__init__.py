"""Training: the LightningModule, its optimiser and schedule, the record of a run, the command line."""

from vit.training.classifier import ViTClassifier
from vit.training.cli import ViTCLI, plain_output
from vit.training.ema import EMA

__all__ = ["EMA", "ViTCLI", "ViTClassifier", "plain_output"]
