"""Checks of the arguments and inputs of ``MultiHeadAttention``.

Each check reads the attributes of the module, and raises a ValueError that quotes the values and names a remedy.
"""

import torch
from torch import Tensor, nn

from vit.attention.cache import KeyValueCache
from vit.attention.masks import check_mask
from vit.attention.mechanisms import MECHANISMS
from vit.support.checks import check_positive_int


def check_widths(attention: nn.Module, name: str, width: int) -> None:
    """Check that the numbers of heads divide the width; ``name`` is the argument that sets it."""
    num_heads, num_kv_heads = attention.num_heads, attention.num_kv_heads
    for argument, value in (("num_heads", num_heads), ("num_kv_heads", num_kv_heads), (name, width)):
        check_positive_int(argument, value)
    if width % num_heads:
        raise ValueError(
            f"{name} ({width}) must be divisible by num_heads ({num_heads}): "
            f"take {name} {max(width - width % num_heads, num_heads)}, or another number of heads"
        )
    if num_heads % num_kv_heads:
        raise ValueError(
            f"num_heads ({num_heads}) must be divisible by num_kv_heads ({num_kv_heads}): each is shared by equally "
            "many query heads"
        )


def check_tied(attention: nn.Module) -> None:
    """Check that tied projections have one width: queries, keys and values, or keys and values only."""
    if attention.tie_qkv and attention.tie_kv:
        raise ValueError("tie_qkv (True) makes keys and values equal as well: set tie_kv (True) to False")
    if attention.tie_qkv and not (
        attention.context_dim == attention.value_context_dim == attention.embed_dim
        and attention.key_dim == attention.value_dim
        and attention.num_kv_heads == attention.num_heads
    ):
        names = ("embed_dim", "context_dim", "value_context_dim", "key_dim", "value_dim", "num_heads", "num_kv_heads")
        given = ", ".join(f"{name} {getattr(attention, name)}" for name in names)
        raise ValueError(f"tie_qkv needs one width for all three ({given}): make them equal, or set tie_qkv to False")
    if attention.tie_kv and attention.context_dim != attention.value_context_dim:
        raise ValueError(
            f"tie_kv needs keys and values from tokens of one width (context_dim {attention.context_dim}, "
            f"value_context_dim {attention.value_context_dim}): make them equal, or set tie_kv to False"
        )
    if attention.tie_kv and attention.key_dim != attention.value_dim:
        raise ValueError(
            f"tie_kv needs keys as wide as values (key_dim {attention.key_dim}, value_dim {attention.value_dim}): make "
            "them equal, or set tie_kv to False"
        )


def check_unprojected(attention: nn.Module, mechanism: str, out_dim: int, qk_norm: bool) -> None:
    """Check the arguments around a mechanism without projections."""
    widths = {attention.embed_dim, attention.context_dim, attention.value_context_dim}
    widths |= {attention.key_dim, attention.value_dim, out_dim}
    shared = attention.num_kv_heads != attention.num_heads or attention.tie_qkv or attention.tie_kv
    if len(widths) > 1 or shared or qk_norm:
        raise ValueError(
            f"{mechanism} has no projections: all widths must be embed_dim ({attention.embed_dim}), not "
            f"{sorted(widths)}, without num_kv_heads, tie_qkv, tie_kv and qk_norm"
        )


def check_tokens(attention: nn.Module, name: str, tokens: Tensor, width: int, width_name: str) -> None:
    """Check shape, device and dtype of tokens against the projections."""
    if isinstance(tokens, torch.fx.Proxy):  # a trace has no sizes yet
        return
    if tokens.ndim != 3 or tokens.shape[-1] != width:
        raise ValueError(
            f"{name} has shape {tuple(tokens.shape)}, but this attention takes (batch, tokens, {width}): "
            f"check {width_name} ({width})"
        )
    if type(attention.proj) is not nn.Linear:  # identity, or an adapter or quantised layer with its own rules
        return
    weight = attention.proj.weight
    if tokens.device != weight.device:
        raise ValueError(f"{name} is on {tokens.device} and the weights on {weight.device}: move one with .to(device)")
    if tokens.dtype != weight.dtype and not torch.is_autocast_enabled(tokens.device.type):
        raise ValueError(f"{name} is {tokens.dtype} and the weights {weight.dtype}: convert one with .to(dtype)")


def check_takes_mask(attention: nn.Module) -> None:
    """Check that the mechanism takes a mask."""
    if "mask" not in attention.mechanism.takes:
        raise ValueError(
            f"{type(attention.mechanism).__name__} takes no mask: leave it out, or choose one of "
            f"{mechanisms_with('mask')}"
        )


def check_takes_angles(attention: nn.Module) -> None:
    """Check that the mechanism attends by dot products: only for these do rotations encode distances of tokens."""
    if not attention.mechanism.rotated_parts:
        raise ValueError(
            f"{type(attention.mechanism).__name__} does not attend by the dot products of queries and keys alone, so "
            "rotary positions would not be distances: choose other positions, or 'softmax'"
        )


def check_context(attention: nn.Module, context: Tensor, angles: Tensor | None) -> None:
    """Check a context, and that neither the attention nor the call turns queries and keys by angles."""
    if attention.is_rotary:
        raise ValueError(
            "the queries and keys of this model turn by rotary angles, and those of a context have none: call it "
            "without a context and with angles, or build a MultiHeadAttention by itself"
        )
    if angles is not None:
        raise ValueError("angles are the positions of self-attention: pass no angles beside a context")
    check_tokens(attention, "context", context, attention.context_dim, "context_dim")


def check_values(attention: nn.Module, context: Tensor | None, values: Tensor | None) -> None:
    """Check the tokens of the values, or that none are needed."""
    width, of_keys = attention.value_context_dim, attention.context_dim
    if values is None:
        if width != of_keys:
            raise ValueError(
                f"this attention is built for values from tokens of width {width} (value_context_dim) and keys from "
                f"tokens of width {of_keys}: pass a context and values"
            )
        return
    if context is None:
        raise ValueError("values are given without the tokens of their keys: pass these as context, be it x itself")
    check_tokens(attention, "values", values, width, "value_context_dim")
    if values.shape[:2] != context.shape[:2]:
        raise ValueError(
            f"values have shape {tuple(values.shape)} and the context {tuple(context.shape)}: give each key a value"
        )


def check_cache(attention: nn.Module, cache: KeyValueCache, q: Tensor, mask: Tensor | None) -> None:
    """Check that self-attention may use a cache, and that the mask fits, before the cache grows."""
    _check_causal(attention)
    if mask is not None:
        check_takes_mask(attention)
        check_mask(mask, (*q.shape[:3], cache.length + q.shape[2]), q.device)


def check_cached_context(attention: nn.Module, q: Tensor, context: Tensor, mask: Tensor | None) -> None:
    """Check that queries may read a context that is kept, and that the mask fits, before the context is kept."""
    if attention.causal:
        raise ValueError(
            "causal attention takes its queries for the last of the context's tokens, and queries of several "
            "steps read a cached context: build the attention with causal False, or pass no cache"
        )
    if mask is not None:
        check_takes_mask(attention)
        check_mask(mask, (*q.shape[:3], context.shape[1]), q.device)


def check_state(attention: nn.Module, context: Tensor | None, mask: Tensor | None) -> None:
    """Check that attention may use a ``StateCache`` with this context and mask."""
    if context is not None:
        raise ValueError("a StateCache keeps no context: pass a KeyValueCache beside it")
    _check_causal(attention)
    if mask is not None:
        check_takes_mask(attention)


def _check_causal(attention: nn.Module) -> None:
    if not attention.causal:
        raise ValueError("a cache of self-attention needs causal=True: build it so, or pass a context to keep")


def mechanisms_with(name: str) -> str:
    """Return the names of the mechanisms that take the input ``name``, for an error's remedy."""
    return ", ".join(key for key, mechanism in MECHANISMS.items() if name in mechanism.takes)
