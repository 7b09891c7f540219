"""Attention with learned mixing across heads.

Letters in the einops patterns: b batch, h g heads, n queries, m keys.
"""

import torch
from einops import einsum
from torch import Tensor, nn

from vit.attention.functional import attention_logits
from vit.attention.masks import masked_softmax
from vit.attention.mechanisms.initial_weights import set_values
from vit.attention.mechanisms.softmax import DenseAttention


class TalkingHeadsAttention(DenseAttention):
    """Attention that mixes logits across heads before the softmax, and weights after it (Shazeer et al. 2020).

    Both mixtures are learned matrices, initially the identity, which gives softmax attention. They need the N x M
    matrix of every head, which fused kernels never form.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.mix_logits = nn.Parameter(torch.empty(num_heads, num_heads))
        self.mix_weights = nn.Parameter(torch.empty(num_heads, num_heads))
        self.init_weights()

    def init_weights(self) -> None:
        """Make both mixtures the identity."""
        for mixture in (self.mix_logits, self.mix_weights):
            set_values(mixture, torch.eye(len(mixture)))

    def weights(self, q: Tensor, k: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Compute the factors of the values; rows need not sum to one: (B, H, N, d), (B, H, M, d) -> (B, H, N, M)."""
        logits = einsum(attention_logits(q, k), self.mix_logits.to(q.dtype), "b g n m, h g -> b h n m")
        weights = masked_softmax(logits, mask, causal)
        return einsum(weights, self.mix_weights.to(weights.dtype), "b g n m, h g -> b h n m")
