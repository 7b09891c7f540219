"""The projections of attention to queries, keys and values: one, two or three layers, with timm's names.

Each function reads the attributes of a ``MultiHeadAttention``.
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from vit.support.hooks import is_plain


def make_projections(attention: nn.Module, bias: bool) -> None:
    """Build the layers of attention: ``qkv``, or ``q`` and ``kv``, or ``q``, ``k`` and ``v``."""
    shared = attention.num_kv_heads, attention.num_heads
    k, v = (dim * shared[0] // shared[1] for dim in (attention.key_dim, attention.value_dim))
    q, kv_dims = attention.key_dim, [k] if attention.tie_kv else [k, v]
    attention.split_dims = [q, *kv_dims]
    if attention.tie_qkv:
        attention.qkv = nn.Linear(attention.embed_dim, q, bias=bias)
    elif attention.value_context_dim != attention.context_dim:
        attention.q = nn.Linear(attention.embed_dim, q, bias=bias)
        attention.k = nn.Linear(attention.context_dim, k, bias=bias)
        attention.v = nn.Linear(attention.value_context_dim, v, bias=bias)
    elif attention.context_dim == attention.embed_dim:
        attention.qkv = nn.Linear(attention.embed_dim, sum(attention.split_dims), bias=bias)
    else:
        attention.q = nn.Linear(attention.embed_dim, q, bias=bias)
        attention.kv = nn.Linear(attention.context_dim, sum(kv_dims), bias=bias)


def project(attention: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Project tokens to the queries, keys and values of self-attention."""
    if not attention.mechanism.projected:
        return x, x, x
    qkv = attention.qkv(x)
    if attention.tie_qkv:
        return qkv, qkv, qkv
    # One split, so that the backward pass joins the gradients of all parts in one copy.
    parts = qkv.split(attention.split_dims, dim=-1)
    return parts[0], parts[1], parts[-1]


def project_context(attention: nn.Module, context: Tensor, values: Tensor | None) -> tuple[Tensor, Tensor]:
    """Project a context to keys and values, or a context to keys and other tokens to values."""
    if values is None:
        return _keys_and_values_in(project_to("kv", attention, context), attention)
    return project_to("k", attention, context), project_to("v", attention, values)


def project_to(part: Literal["q", "k", "v", "kv"], attention: nn.Module, tokens: Tensor) -> Tensor:
    """Project tokens to the queries, keys or values of all heads, or to keys and values."""
    if not attention.mechanism.projected:
        return tokens
    if attention.tie_qkv:
        return attention.qkv(tokens)
    if hasattr(attention, part):
        return getattr(attention, part)(tokens)
    q, k = attention.split_dims[:2]
    first, last = {"q": (0, q), "kv": (q, None), "k": (q, q + k), "v": (q if attention.tie_kv else q + k, None)}[part]
    if hasattr(attention, "qkv"):
        return _project_by_rows(attention.qkv, slice(first, last), tokens)
    return _project_by_rows(attention.kv, slice(first - q, None if last is None else last - q), tokens)


def _project_by_rows(layer: nn.Linear, rows: slice, tokens: Tensor) -> Tensor:
    """Project tokens by some rows of a layer's weight matrix."""
    if not is_plain(layer, nn.Linear):  # such as an adapter, which computes all rows
        return layer(tokens)[..., rows]
    return F.linear(tokens, layer.weight[rows], None if layer.bias is None else layer.bias[rows])


def _keys_and_values_in(kv: Tensor, attention: nn.Module) -> tuple[Tensor, Tensor]:
    if attention.tie_qkv or attention.tie_kv or not attention.mechanism.projected:
        return kv, kv
    k, v = kv.split(attention.split_dims[1:], dim=-1)
    return k, v
