"""Attention with other scores than the dot product of a query and a key.

Letters in the einops patterns: b batch, h heads, n queries, d e channels per head.
"""

from typing import ClassVar

import torch
from einops import einsum, repeat
from torch import Tensor, nn

from vit.attention.functional import additive_logits, attention_weights
from vit.attention.masks import masked_softmax
from vit.attention.mechanisms.initial_weights import set_values
from vit.attention.mechanisms.softmax import DenseAttention
from vit.attention.mechanisms.softmax_kernels import attend


class AdditiveAttention(DenseAttention):
    """Attention by a score that adds query and key: ``softmax(v^T tanh(W x + U c))`` (Bahdanau et al. 2015).

    W and U are the projections to queries and keys, and each head learns v. The tanh bounds a logit by the sum of
    ``|v|``, however wide the heads are. All N x M x d sums are formed, so it is far slower than a product of matrices.
    """

    rotated_parts: ClassVar[int] = 0

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.empty(num_heads, head_dim))
        self.init_weights()

    def init_weights(self) -> None:
        """Draw the directions, normal, so that the variance of a logit does not depend on the width of the heads."""
        nn.init.normal_(self.direction, std=self.direction.shape[-1] ** -0.5)

    def no_weight_decay(self) -> set[str]:
        """Return the directions, which are a vector for each head, not a matrix."""
        return {"direction"}

    def weights(self, q: Tensor, k: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Compute the attention weights: (B, H, N, d), (B, H, M, d) -> (B, H, N, M)."""
        return masked_softmax(additive_logits(q, k, self.direction.to(q.dtype)), mask, causal)


class GeneralAttention(DenseAttention):
    """Attention by a learned bilinear form: ``softmax(q^T W k / sqrt(d)) v`` (Luong et al. 2015, "general").

    Each head learns a matrix W, initially the identity, which gives softmax attention. The projections could absorb W,
    so it computes nothing that softmax attention cannot; only its training differs.
    """

    rotated_parts: ClassVar[int] = 0

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.form = nn.Parameter(torch.empty(num_heads, head_dim, head_dim))
        self.init_weights()

    def init_weights(self) -> None:
        """Make each W the identity."""
        set_values(self.form, repeat(torch.eye(self.form.shape[-1]), "d e -> h d e", h=len(self.form)))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, e) -> (B, H, N, e)."""
        return attend(self._transformed(q), k, v, mask=mask, causal=causal)

    def weights(self, q: Tensor, k: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Compute the attention weights: (B, H, N, d), (B, H, M, d) -> (B, H, N, M)."""
        return attention_weights(self._transformed(q), k, mask=mask, causal=causal)

    def _transformed(self, q: Tensor) -> Tensor:
        return einsum(q, self.form.to(q.dtype), "b h n d, h d e -> b h n e")
