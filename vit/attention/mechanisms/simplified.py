"""Self-attention without projections."""

from typing import ClassVar, Literal

import torch.nn.functional as F
from einops import einsum
from torch import Tensor

from vit.attention.functional import attention_weights, check_qkv
from vit.attention.mechanisms.base import Mechanism


class SimplifiedAttention(Mechanism):
    """The heads of the tokens themselves, compared as they are, without scale: ``simplified_attention`` in each head.

    The block around it has no projections to queries, keys and values and none of the output; what it learns, it
    learns in its MLP.

    Args:
        similarity: How tokens are compared: by their "dot" product, or by the "cosine" of their angle.
    """

    projected: ClassVar[bool] = False
    independent_queries: ClassVar[bool] = True

    def __init__(self, similarity: Literal["dot", "cosine"] = "dot") -> None:
        super().__init__()
        if similarity not in ("dot", "cosine"):
            raise ValueError(f"unknown similarity {similarity!r}: choose 'dot' or 'cosine'")
        self.similarity = similarity

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, e) -> (B, H, N, e)."""
        check_qkv(q, k, v)
        return einsum(self.weights(q, k, mask=mask, causal=causal), v, "b h n m, b h m d -> b h n d")

    def weights(self, q: Tensor, k: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Attention of every query over every key: (B, H, N, d), (B, H, M, d) -> (B, H, N, M)."""
        if self.similarity == "cosine":
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return attention_weights(q, k, mask=mask, causal=causal, scale=1.0)
