"""Attention: formulas, mechanisms, the multi-head module, and the caches of a growing sequence."""

from vit.attention.cache import KeyValueCache, StateCache
from vit.attention.functional import (
    attention_logits,
    attention_weights,
    rotate,
    scaled_dot_product_attention,
    simplified_attention,
)
from vit.attention.masks import causal_mask, mask_logits, padding_mask
from vit.attention.mechanisms import MECHANISMS, AttentionName, Mechanism
from vit.attention.multihead import MultiHeadAttention

__all__ = [
    "MECHANISMS",
    "AttentionName",
    "KeyValueCache",
    "Mechanism",
    "MultiHeadAttention",
    "StateCache",
    "attention_logits",
    "attention_weights",
    "causal_mask",
    "mask_logits",
    "padding_mask",
    "rotate",
    "scaled_dot_product_attention",
    "simplified_attention",
]
