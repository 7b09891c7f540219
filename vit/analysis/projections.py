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
    heads = attention.num_heads
    dims = getattr(attention, "split_dims", None) or [len(joint) // 3] * 3
    if len(dims) != 3 or sum(dims) != len(joint) or len(set(dims[:2])) > 1:
        raise ValueError(
            f"{type(attention).__name__} has {len(joint)} rows of qkv for {heads} heads: heads that share projections "
            "(num_kv_heads, tie_qkv, tie_kv) have no spectra of their own; give a model without"
        )
    query, key, value = (rearrange(rows, "(h d) c -> h d c", h=heads) for rows in joint.split(dims))
    return Projections(query, key, value, rearrange(output, "o (h d) -> h o d", h=heads))
