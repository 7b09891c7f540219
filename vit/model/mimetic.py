"""Mimetic weight initialisation.

Letters in the einops patterns: s query, key and value, h heads, d channels per head, c channels of a token.
"""

from typing import Literal

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.model.decoder_block import DecoderBlock
from vit.model.encoder_block import EncoderBlock

Init = Literal["glorot", "mimetic"]


@torch.no_grad()
def mimetic_attention(model: nn.Module) -> None:
    """Initialise the self-attention of each block close to trained attention (Trockman and Kolter 2023, sec. 4).

    In trained transformers the product ``W_q^T W_k`` of a head is close to a multiple of the identity plus noise, so
    that tokens attend to similar tokens at similar positions, and ``W_proj W_v`` to a negative multiple. Queries and
    keys of a head are therefore the best factors of rank d of ``0.7 Z + 0.7 I``, and values and output those of rank D
    of ``0.4 Z - 0.4 I``, with Z normal of variance 1 / D. This is meant for sine-cosine positions.

    In benchmarks/results/ablation.md, the row "Glorot instead of mimetic start" has the accuracy without it; the
    difference may be chance. In the row "normal positions, Glorot start" the positions start as noise, too.

    Raises:
        ValueError: If the attention has no projections, or shares them.
    """
    for block in model.modules():
        if not isinstance(block, (EncoderBlock, DecoderBlock)):
            continue
        attn = block.attn
        if not attn.mechanism.projected:
            raise ValueError(
                f"init mimetic sets projections, and {type(attn.mechanism).__name__} has none: take init glorot"
            )
        if attn.tie_qkv or attn.tie_kv or attn.num_kv_heads != attn.num_heads:
            raise ValueError(
                f"init mimetic sets queries, keys and values of each head, and tie_qkv ({attn.tie_qkv}), tie_kv "
                f"({attn.tie_kv}) or num_kv_heads ({attn.num_kv_heads} of {attn.num_heads}) shares some: take glorot"
            )
        if not attn.key_dim == attn.value_dim == attn.embed_dim:
            raise ValueError(
                f"init mimetic needs key_dim ({attn.key_dim}) and value_dim ({attn.value_dim}) as wide as a token "
                f"({attn.embed_dim}): take glorot"
            )
        qkv = rearrange(attn.qkv.weight, "(s h d) c -> s h d c", s=3, h=attn.num_heads)
        for q, k in zip(qkv[0], qkv[1], strict=True):
            factors = _factors(_near_identity(attn.embed_dim, 0.7, 0.7), rank=len(q))
            q.copy_(factors[0])
            k.copy_(factors[1])
        v, proj = _factors(_near_identity(attn.embed_dim, 0.4, -0.4), rank=attn.embed_dim)
        qkv[2].copy_(rearrange(v, "(h d) c -> h d c", h=attn.num_heads))
        attn.proj.weight.copy_(rearrange(proj, "d c -> c d"))


def _near_identity(dim: int, noise: float, identity: float) -> Tensor:
    return noise * torch.randn(dim, dim) / dim**0.5 + identity * torch.eye(dim)


def _factors(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return A and B, (rank, D) each, whose product A^T B is nearest to a matrix (D, D)."""
    left, values, right = torch.linalg.svd(matrix)
    root = values[:rank, None].sqrt()
    return root * left.mT[:rank], root * right[:rank]
