"""Attention as the difference of two softmaxes.

Letters in the einops patterns: b batch, h heads, n tokens, d channels of a half.
"""

import math
from typing import Any, ClassVar

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.attention.functional import attention_weights
from vit.attention.mechanisms.softmax import DenseAttention
from vit.attention.mechanisms.softmax_kernels import attend
from vit.support.precision import at_least_float32


class DifferentialAttention(DenseAttention):
    """Differential attention: subtracting a second softmax cancels common noise (Ye et al. 2025, eq. 1 to 3).

    The queries and keys of each head are split in halves: ``(softmax(q1 k1^T) - lambda softmax(q2 k2^T)) v``, then each
    head is normalised and scaled by ``1 - lambda_init``. ``lambda = exp(lq1 . lk1) - exp(lq2 . lk2) + lambda_init`` is
    learned, with ``lambda_init = 0.8 - 0.6 exp(-0.3 block_index)``. Lambda 0 gives softmax attention of the first
    halves, normalised and scaled. Rotary positions turn each half by itself, as it has a softmax of its own.
    """

    rotated_parts: ClassVar[int] = 2

    def __init__(self, head_dim: int, value_head_dim: int, block_index: int = 0) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(
                f"differential attention splits each head in halves: its channels ({head_dim}) must be even; take "
                "another number of heads"
            )
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * block_index)
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
            nn.Parameter(torch.empty(head_dim // 2)) for _ in range(4)
        )
        self.norm = nn.RMSNorm(value_head_dim, eps=1e-5)
        self.init_weights()

    def init_weights(self) -> None:
        """Draw the vectors of lambda, normal of standard deviation 0.1."""
        super().init_weights()
        for vector in (self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2):
            nn.init.normal_(vector, std=0.1)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, e) -> (B, H, N, e)."""
        (q1, q2), (k1, k2) = _halves(q), _halves(k)
        first, second = (attend(q, k, v, mask=mask, causal=causal) for q, k in ((q1, k1), (q2, k2)))
        return self._normalise(first - self.factor.to(v.dtype) * second)

    def weights(self, q: Tensor, k: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Compute the difference of the two softmaxes, which may be negative: (B, H, N|M, d) -> (B, H, N, M)."""
        (q1, q2), (k1, k2) = _halves(q), _halves(k)
        first, second = (attention_weights(q, k, mask=mask, causal=causal) for q, k in ((q1, k1), (q2, k2)))
        return first - self.factor.to(first.dtype) * second

    def mix(self, weights: Tensor, v: Tensor, **inputs: Any) -> Tensor:
        """Mix the values by the difference, and normalise: (B, H, N, M), (B, H, M, e) -> (B, H, N, e)."""
        return self._normalise(super().mix(weights, v))

    def _normalise(self, difference: Tensor) -> Tensor:
        return self.norm(at_least_float32(difference)).to(difference.dtype) * (1 - self.lambda_init)

    @property
    def factor(self) -> Tensor:
        """The learned lambda, a scalar."""
        learned = (self.lambda_q1 * self.lambda_k1).sum().exp() - (self.lambda_q2 * self.lambda_k2).sum().exp()
        return learned + self.lambda_init


def _halves(x: Tensor) -> Tensor:
    return rearrange(x, "b h n (half d) -> half b h n d", half=2)
