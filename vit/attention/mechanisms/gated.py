"""Attention with a learned output gate.

Letters in the einops patterns: b batch, h heads, n tokens, d channels per head.
"""

from typing import Any

from einops import rearrange
from torch import Tensor, nn

from vit.attention.mechanisms.softmax import DenseAttention
from vit.attention.mechanisms.softmax_kernels import attend


class GatedAttention(DenseAttention):
    """Softmax attention, times the gate ``sigmoid(x W + b)`` of the query's token x (Qiu et al. 2025).

    Each channel of each head has a gate; ``weights`` are the attention weights before it. A closed gate makes the
    output zero. Without gates, heads put their weight on the class token or a background patch (an attention sink).
    """

    def __init__(self, embed_dim: int, num_heads: int, value_head_dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(embed_dim, num_heads * value_head_dim)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, tokens: Tensor, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, e), tokens (B, N, D) -> (B, H, N, e)."""
        return attend(q, k, v, mask=mask, causal=causal) * self._gate(tokens, q.shape[1])

    def mix(self, weights: Tensor, v: Tensor, *, tokens: Tensor, **inputs: Any) -> Tensor:
        """Mix the values, times the gate: (B, H, N, M), (B, H, M, e), tokens (B, N, D) -> (B, H, N, e)."""
        return super().mix(weights, v) * self._gate(tokens, weights.shape[1])

    def _gate(self, tokens: Tensor, heads: int) -> Tensor:
        return rearrange(self.gate(tokens).sigmoid(), "b n (h d) -> b h n d", h=heads)
