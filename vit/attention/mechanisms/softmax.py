"""Softmax attention, and the base of all mechanisms that form a matrix of weights."""

from typing import ClassVar

import torch
from torch import Tensor

from vit.attention.functional import attention_weights
from vit.attention.mechanisms.mechanism import Mechanism
from vit.attention.mechanisms.softmax_kernels import attend
from vit.attention.qkv_checks import check_qkv

for function in ("attend", "attention_weights", "check_qkv"):
    torch.fx.wrap(function)  # stays one node in an fx trace: it reads sizes, which a trace does not know


class DenseAttention(Mechanism):
    """The base of mechanisms with a weight for each query and key. By default these are softmax attention."""

    independent_queries: ClassVar[bool] = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, e) -> (B, H, N, e)."""
        check_qkv(q, k, v)
        return self.mix(self.weights(q, k, mask=mask, causal=causal), v)

    def weights(self, q: Tensor, k: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Compute the attention weights: (B, H, N, d), (B, H, M, d) -> (B, H, N, M)."""
        return attention_weights(q, k, mask=mask, causal=causal)


class SoftmaxAttention(DenseAttention):
    """Attention of every token to every token: ``softmax(q k^T / sqrt(d)) v`` (Vaswani et al. 2017, eq. 1).

    Under ``torch.func.vmap``, torch runs its fused CPU kernel once for each image, and warns that this is slow; the
    same holds for all mechanisms that call ``attend``.

    Args:
        scaled: Whether logits are divided by ``sqrt(d)``. Otherwise their variance grows with the width of the heads,
            and attention starts closer to one key (Vaswani et al. 2017, sec. 3.2.1).
    """

    def __init__(self, scaled: bool = True) -> None:
        super().__init__()
        if not isinstance(scaled, bool):
            raise ValueError(f"scaled ({scaled!r}) must be True or False")
        self.scaled = scaled

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, e) -> (B, H, N, e)."""
        return attend(self._rescaled(q), k, v, mask=mask, causal=causal)

    def weights(self, q: Tensor, k: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Compute the attention weights: (B, H, N, d), (B, H, M, d) -> (B, H, N, M)."""
        return attention_weights(self._rescaled(q), k, mask=mask, causal=causal)

    def _rescaled(self, q: Tensor) -> Tensor:
        return q if self.scaled else q * q.shape[-1] ** 0.5
