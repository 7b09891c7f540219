"""Captures or replaces the attention of any running ViT, layer by layer, and finds the parts of the model."""

from vit.capture.anatomy import Anatomy, examine
from vit.capture.attention import Attentions, capture_attention
from vit.capture.intercept import InterceptAttention
from vit.capture.sequence import SequenceAttentions, capture_sequence

__all__ = [
    "Anatomy",
    "Attentions",
    "InterceptAttention",
    "SequenceAttentions",
    "capture_attention",
    "capture_sequence",
    "examine",
]
