"""Attention that is the same for every key."""

import torch
from torch import Tensor

from vit.attention.functional import masked_softmax
from vit.attention.mechanisms.softmax import DenseAttention


class UniformAttention(DenseAttention):
    """Attention of every token to all tokens alike: each of M keys gets ``1 / M``, and every output is the mean value.

    A control: a model trained with it shows what the MLPs, the positions and one mean over the image reach, which
    attention has to beat. Queries and keys are projected, so that the model has the size of one with softmax
    attention, and not used.
    """

    def weights(self, q: Tensor, k: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Spread attention evenly over the unmasked keys: (B, H, N, d), (B, H, M, d) -> (B, H, N, M)."""
        return masked_softmax(torch.zeros_like(q[..., :1]).expand(*q.shape[:3], k.shape[-2]), mask, causal)
