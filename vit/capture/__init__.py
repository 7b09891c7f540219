"""Captures or replaces the attention of any running ViT, layer by layer, and finds the parts of the model.

Read ``attention.py`` first, which captures, then ``anatomy.py``, which finds the parts. They use four folders:

- ``interception/`` reads and replaces attention weights where they multiply the values;
- ``parts/`` finds layers, patches and their pixels, the order of tokens, and the logits and what they read;
- ``checks/`` refuses models whose attention is not all there is;
- ``experiments/`` changes images or tokens, and tells what that moves.
"""

from vit.capture.anatomy import Anatomy, examine
from vit.capture.attention import Attentions, capture_attention
from vit.capture.interception.intercept import InterceptAttention
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
