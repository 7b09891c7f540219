"""Attention of any running ViT, intercepted and captured layer by layer, and the parts of the model around it."""

from vit.capture.anatomy import Anatomy, examine
from vit.capture.attention import Attentions, capture_attention
from vit.capture.intercept import InterceptAttention

__all__ = ["Anatomy", "Attentions", "InterceptAttention", "capture_attention", "examine"]
