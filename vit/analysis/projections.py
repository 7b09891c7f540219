"""Spectra and ranks of the projections of heads.

Letters in the einops patterns: h heads, d channels of a head, c channels of a token, o channels of an output token.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

from vit.analysis.measures import effective_rank, singular_values
from vit.analysis.modules import attention_modules, head_count, is_of_transformers
from vit.attention import MultiHeadAttention


class Projections(NamedTuple):
    """The projection weights of each head of an attention."""

    query: Tensor  # from token to query, (H, d, C)
    key: Tensor  # from token to key, (H, d, C)
    value: Tensor  # from token to value, (H, e, C)
    output: Tensor  # from value to output token, (H, O, e)


@dataclass(frozen=True)
class LayerRanks:
    """Singular values of the products of projections in a layer, largest first.

    Attributes:
        query_key: Of ``W_Q^T W_K`` of each head, the bilinear form of the attention logits: (H, d).
        value_output: Of ``W_O W_V`` of each head, the map from an attended token to the output: (H, e).
        shared_query_key: Of ``W_Q^T W_K`` of the concatenated heads, which is the sum over heads: (C,).
        shared_value_output: Of ``W_O W_V`` of the concatenated heads, which is the sum over heads: (C,).
    """

    query_key: Tensor
    value_output: Tensor
    shared_query_key: Tensor
    shared_value_output: Tensor

    def effective_ranks(self) -> dict[str, Tensor]:
        """Compute the effective rank of each product: (H,), at most a head's width, or a scalar, at most a token's."""
        return {name: effective_rank(values) for name, values in vars(self).items()}


@torch.no_grad()
def projection_ranks(model: nn.Module) -> list[LayerRanks]:
    """Compute the spectra of the projections of each layer (Cordonnier et al. 2020, fig. 1).

    If heads have dimensions in common, the rank of the concatenated product is lower than the number of heads times
    their width. Layers that lost all heads are left out.

    >>> import vit
    >>> model = vit.VisionTransformer(embed_dim=24, depth=2, num_heads=3)
    >>> first, second = projection_ranks(model)
    >>> first.query_key.shape, first.shared_query_key.shape
    (torch.Size([3, 8]), torch.Size([24]))

    Raises:
        ValueError: If the heads of an attention have no projections of their own.
    """
    return [_ranks(head_projections(attention)) for attention in attention_modules(model) if head_count(attention)]


def _ranks(of: Projections) -> LayerRanks:
    products = (
        einsum(of.query, of.key, "h d c, h d o -> h c o"),
        einsum(of.output, of.value, "h o d, h d c -> h o c"),
    )
    # If the inner width of a product is d, at most d singular values are above zero.
    inner = (of.query.shape[1], of.value.shape[1])
    per_head = (singular_values(x)[:, :width] for x, width in zip(products, inner, strict=True))
    return LayerRanks(*per_head, *(singular_values(x.sum(dim=0)) for x in products))


def head_projections(attention: nn.Module) -> Projections:
    """Return the weights of each head of one attention.

    Raises:
        ValueError: If the attention has no joint projection, or its heads share projections.
    """
    if is_of_transformers(attention):
        heads = attention.num_attention_heads
        rows = (attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight)
        if len({len(weight) for weight in rows}) > 1:
            raise ValueError(f"{type(attention).__name__} shares keys and values between heads: give a model without")
        projections = (rearrange(weight, "(h d) c -> h d c", h=heads) for weight in rows)
        return Projections(*projections, rearrange(attention.o_proj.weight, "o (h d) -> h o d", h=heads))
    if isinstance(attention, nn.MultiheadAttention) and attention.in_proj_weight is not None:
        joint, output = attention.in_proj_weight, attention.out_proj.weight
    elif isinstance(getattr(attention, "qkv", None), nn.Linear):
        joint, output = attention.qkv.weight, attention.proj.weight
    else:
        raise ValueError(
            f"{type(attention).__name__} has no joint projection to queries, keys and values (qkv, in_proj_weight), "
            "as in simplified attention and in cross-attention: give a model with one"
        )
    rows = _rows_of_heads(attention, len(joint))
    if hasattr(attention, "qkv") and not isinstance(attention, MultiHeadAttention):
        _check_values(attention, rows[2])
    return Projections(*(joint[each] for each in rows), rearrange(output, "o (h d) -> h o d", h=attention.num_heads))


def _rows_of_heads(attention: nn.Module, count: int) -> tuple[Tensor, ...]:
    """Return which of the ``count`` rows of qkv are the queries, keys and values of each head: (H, d), (H, d), (H, e).

    Raises:
        ValueError: If heads share rows.
    """
    rows, heads = torch.arange(count), attention.num_heads
    if hasattr(attention, "val_dim"):  # timm's TinyViT and EfficientFormer store head by head
        widths = [attention.key_dim, attention.key_dim, attention.val_dim]
        return rearrange(rows, "(h d) -> h d", h=heads).split(widths, dim=1)
    if getattr(attention, "head_first", False):  # timm's MaxViT does, too
        return rearrange(rows, "(h d) -> h d", h=heads).chunk(3, dim=1)
    dims = getattr(attention, "split_dims", None) or [count // 3] * 3
    if len(dims) != 3 or sum(dims) != count or len(set(dims[:2])) > 1:
        raise ValueError(
            f"{type(attention).__name__} has {count} rows of qkv for {heads} heads: heads that share projections "
            "(num_kv_heads, tie_qkv, tie_kv) have no spectra of their own; give a model without"
        )
    return tuple(rearrange(part, "(h d) -> h d", h=heads) for part in rows.split(dims))


@torch.no_grad()
def _check_values(attention: nn.Module, rows: Tensor) -> None:
    """Check that values of the first head at one token, by its rows (H, e), reach all tokens, in its columns alone.

    An attention that takes other inputs than tokens (B, N, C), or has a norm in front of proj, is not checked.

    Raises:
        ValueError: If they reach other columns of proj, or not all of four tokens.
    """
    set_alone: list[Tensor] = []
    reached: list[Tensor] = []

    def first_head(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        alone = torch.zeros_like(output)
        set_alone.append(alone)
        alone[:, 0, rows[0]] = 1
        return alone

    hooks = (
        attention.qkv.register_forward_hook(first_head),
        attention.proj.register_forward_pre_hook(lambda _, inputs: reached.append(inputs[0] != 0)),
    )
    try:
        attention(attention.qkv.weight.new_zeros(1, 4, attention.qkv.in_features))
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError, AssertionError):
        return  # it wants a map (B, H, W, C), windows, or a mask
    finally:
        for hook in hooks:
            hook.remove()
    if not (set_alone and reached):  # the weights are used without their module
        return
    columns, expected = reached[0].flatten(end_dim=-2).any(dim=0).cpu(), torch.arange(rows.numel()) < rows.shape[1]
    if not columns.all() and not torch.equal(columns, expected):
        raise ValueError(
            f"{type(attention).__name__} stores the rows of qkv in another order than queries, keys and values, each "
            "head by head, so its heads have no known projections: give a model of timm or of this package"
        )
    if not reached[0].flatten(start_dim=2).any(dim=2).all():
        raise ValueError(
            f"{type(attention).__name__} attends over channels and not over tokens, so that queries and keys make no "
            "logits of tokens: give a model whose tokens attend to each other"
        )
