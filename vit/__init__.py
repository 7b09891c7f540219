"""A readable Vision Transformer: train it, import it, see what it attends to."""

from vit import attention
from vit.model import VisionTransformer
from vit.weights import load

__all__ = ["VisionTransformer", "attention", "load"]
__version__ = "0.1.0"
