"""A readable Vision Transformer: train it, import it, see what it attends to."""

from typing import TYPE_CHECKING, Any

from vit import attention
from vit.model import (
    PRESETS,
    DecoderBlock,
    ImageToSequence,
    TokenMerging,
    TransformerDecoder,
    VisionTransformer,
    create,
)
from vit.version import __version__
from vit.weights import load, save
from vit.weights.export import export

if TYPE_CHECKING:
    from vit.features.pyramid import FeaturePyramid

__all__ = [
    "PRESETS",
    "DecoderBlock",
    "FeaturePyramid",
    "ImageToSequence",
    "TokenMerging",
    "TransformerDecoder",
    "VisionTransformer",
    "__version__",
    "attention",
    "create",
    "export",
    "load",
    "save",
]


def __getattr__(name: str) -> Any:
    if name == "FeaturePyramid":  # imported when it is used
        from vit.features.pyramid import FeaturePyramid

        return FeaturePyramid
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
