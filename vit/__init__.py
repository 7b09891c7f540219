"""A readable Vision Transformer: train it, import it, see what it attends to."""

from vit import attention
from vit.model import VisionTransformer
from vit.version import __version__
from vit.weights import load, save

__all__ = ["VisionTransformer", "__version__", "attention", "load", "save"]
