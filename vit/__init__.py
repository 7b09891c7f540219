"""A readable Vision Transformer: train it, import it, see what it attends to."""

from vit import attention
from vit.model.presets import PRESETS, create
from vit.model.vision_transformer import VisionTransformer
from vit.version import __version__
from vit.weights import load, save
from vit.weights.export import export

__all__ = ["PRESETS", "VisionTransformer", "__version__", "attention", "create", "export", "load", "save"]
