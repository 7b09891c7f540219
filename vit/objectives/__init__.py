"""What a model is trained for: a folder for each objective."""

from vit.objectives.classify.objective import ViTClassifier
from vit.objectives.complete.objective import ImageCompleter
from vit.objectives.read.objective import SequenceReader

__all__ = ["ImageCompleter", "SequenceReader", "ViTClassifier"]
