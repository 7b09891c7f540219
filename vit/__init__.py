"""A readable Vision Transformer: train it, import it, see what it attends to."""

from vit import attention
from vit.model import (
    PRESETS,
    DecoderBlock,
    ImageToSequence,
    TransformerDecoder,
    VisionTransformer,
    create,
)
from vit.version import __version__
from vit.weights import load, save
from vit.weights.export import export

__all__ = [
    "PRESETS",
    "DecoderBlock",
    "ImageToSequence",
    "TransformerDecoder",
    "VisionTransformer",
    "__version__",
    "attention",
    "create",
    "export",
    "load",
    "save",
]
