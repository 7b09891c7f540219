"""Self-attention without projections."""

from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from vit.attention.functional import attention_weights
from vit.attention.mechanisms.softmax import DenseAttention
from vit.support.checks import check_choice


class SimplifiedAttention(DenseAttention):
    """``simplified_attention`` in each head: no projections, no scale.

    Queries, keys and values are slices of the tokens, and the output has no projection either. Of a block with this
    mechanism, only the MLP and the norms learn.

    Args:
        similarity: Similarity of two tokens: their "dot" product, or the "cosine" of their angle.
    """

    projected: ClassVar[bool] = False

    def __init__(self, similarity: Literal["dot", "cosine"] = "dot") -> None:
        super().__init__()
        check_choice("similarity", similarity, ("dot", "cosine"))
        self.similarity = similarity

    def weights(self, q: Tensor, k: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Compute the attention weights: (B, H, N, d), (B, H, M, d) -> (B, H, N, M)."""
        if self.similarity == "cosine":
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return attention_weights(q, k, mask=mask, causal=causal, scale=1.0)
