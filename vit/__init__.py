"""A readable Vision Transformer: train it, import it, see what it attends to."""

from vit import attention
from vit.model import VisionTransformer

__all__ = ["VisionTransformer", "attention"]
__version__ = "0.1.0"
