"""Training: the modules that are trained, their optimiser and schedule, the callbacks of a run, the command line."""

from vit.training.attention_maps import AttentionMaps
from vit.training.classifier import ViTClassifier
from vit.training.cli import ViTCLI
from vit.training.cli_errors import Parser, plain_output
from vit.training.ema import EMA
from vit.training.image_completer import ImageCompleter
from vit.training.module import TrainingModule
from vit.training.sequence_reader import SequenceReader

__all__ = [
    "EMA",
    "AttentionMaps",
    "ImageCompleter",
    "Parser",
    "SequenceReader",
    "TrainingModule",
    "ViTCLI",
    "ViTClassifier",
    "plain_output",
]
