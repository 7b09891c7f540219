"""What a model is trained for: a folder for each objective, and the table of all."""

from vit.objectives.classify.objective import ViTClassifier
from vit.objectives.complete.objective import ImageCompleter
from vit.objectives.dino.objective import DINO
from vit.objectives.mae.objective import MaskedAutoencoder
from vit.objectives.multilabel.objective import MultilabelClassifier
from vit.objectives.read.objective import SequenceReader
from vit.objectives.sigreg.objective import SIGReg
from vit.training.objective import Objective

OBJECTIVES: dict[str, type[Objective]] = {
    objective.__name__: objective
    for objective in (
        ViTClassifier,
        SequenceReader,
        ImageCompleter,
        MultilabelClassifier,
        MaskedAutoencoder,
        SIGReg,
        DINO,
    )
}
DEFAULT = ViTClassifier

__all__ = [
    "DEFAULT",
    "DINO",
    "OBJECTIVES",
    "ImageCompleter",
    "MaskedAutoencoder",
    "MultilabelClassifier",
    "SIGReg",
    "SequenceReader",
    "ViTClassifier",
]
