"""Attention whose output each token may shut.

Letters in the einops patterns: b batch, h heads, n tokens, d channels per head.
"""

from typing import Any, ClassVar

from einops import rearrange
from torch import Tensor, nn

from vit.attention.functional import attention_weights
from vit.attention.mechanisms.base import Mechanism
from vit.attention.mechanisms.softmax import attend


class GatedAttention(Mechanism):
    """Softmax attention, times ``sigmoid(x W + b)`` of the token that asked (Qiu et al. 2025).

    One gate for each channel of each head. It lets a token take nothing where nothing fits, which otherwise the class
    token or some background patch has to serve as a sink for.
    """

    independent_queries: ClassVar[bool] = True

    def __init__(self, embed_dim: int, num_heads: int, value_head_dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(embed_dim, num_heads * value_head_dim)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, tokens: Tensor, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, e), tokens (B, N, D) -> (B, H, N, e)."""
        return attend(q, k, v, mask=mask, causal=causal) * self._openness(tokens, q.shape[1])

    def weights(self, q: Tensor, k: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Attention of every query over every key, before the gate: (B, H, N, d), (B, H, M, d) -> (B, H, N, M)."""
        return attention_weights(q, k, mask=mask, causal=causal)

    def mix(self, weights: Tensor, v: Tensor, *, tokens: Tensor, **around: Any) -> Tensor:
        """The values by these weights, times the gate: (B, H, N, M), (B, H, M, e), tokens (B, N, D) -> (B, H, N, e)."""
        return super().mix(weights, v) * self._openness(tokens, weights.shape[1])

    def _openness(self, tokens: Tensor, heads: int) -> Tensor:
        return rearrange(self.gate(tokens).sigmoid(), "b n (h d) -> b h n d", h=heads)
