"""Attention that is the same for every key."""

from typing import ClassVar

from torch import Tensor

from vit.attention.functional import attention_weights
from vit.attention.mechanisms.softmax import DenseAttention


class UniformAttention(DenseAttention):
    """Attention of every token to all tokens alike: each of M keys gets ``1 / M``, and every output is the mean value.

    A control: a model trained with it shows what MLPs, positions and one mean over the image achieve. Learned attention
    has to beat that. It is softmax attention whose logits have the scale 0, with the same size and cost.
    """

    rotated_parts: ClassVar[int] = 0

    def weights(self, q: Tensor, k: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Spread attention evenly over the unmasked keys: (B, H, N, d), (B, H, M, d) -> (B, H, N, M)."""
        return attention_weights(q, k, mask=mask, causal=causal, scale=0.0)
