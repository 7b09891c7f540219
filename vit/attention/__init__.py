"""Attention: the formulas, the mechanisms, and the multi-head module around them."""

from vit.attention.functional import attention_weights, scaled_dot_product_attention
from vit.attention.mechanisms import MECHANISMS, SoftmaxAttention
from vit.attention.multihead import MultiHeadAttention

__all__ = [
    "MECHANISMS",
    "MultiHeadAttention",
    "SoftmaxAttention",
    "attention_weights",
    "scaled_dot_product_attention",
]
