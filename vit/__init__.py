"""A readable Vision Transformer: train it, import it, see what it attends to."""

from vit import attention
from vit.export import export
from vit.model import VisionTransformer
from vit.presets import PRESETS, create
from vit.version import __version__
from vit.weights import load, save

__all__ = ["PRESETS", "VisionTransformer", "__version__", "attention", "create", "export", "load", "save"]
