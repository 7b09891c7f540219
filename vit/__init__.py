"""A readable Vision Transformer: train it, import it, see what it attends to.

Names are imported on first use, so that a command answers Ctrl-C and ``--version`` before torch is loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vit.version import __version__

if TYPE_CHECKING:
    from vit import attention
    from vit.features.pyramid import FeaturePyramid
    from vit.inference import optimize
    from vit.model import (
        PRESETS,
        DecoderBlock,
        ImageToSequence,
        TokenMerging,
        TransformerDecoder,
        VisionTransformer,
        create,
    )
    from vit.support.kept_memory import keep_freed_memory
    from vit.weights import load, save
    from vit.weights.export import export

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
    "keep_freed_memory",
    "load",
    "optimize",
    "save",
]
SUBPACKAGES = ("attention", "model", "weights")
# Modules of the names that are not in vit.model.
MODULES = {
    "FeaturePyramid": "vit.features.pyramid",
    "export": "vit.weights.export",
    "keep_freed_memory": "vit.support.kept_memory",
    "load": "vit.weights",
    "optimize": "vit.inference",
    "save": "vit.weights",
}


def __getattr__(name: str) -> Any:
    if name in SUBPACKAGES:
        return import_module(f"vit.{name}")
    if name in __all__:
        return getattr(import_module(MODULES.get(name, "vit.model")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
