"""The mathematics of attention, as pure functions on tensors.

Letters in the einops patterns: b batch, n queries, m keys, h heads, d channels per head.
"""

from einops import einsum
from torch import Tensor


def attention_weights(q: Tensor, k: Tensor, *, scale: float | None = None) -> Tensor:
    """How much each query attends to each key: (B, H, N, d), (B, H, M, d) -> (B, H, N, M).

    ``softmax(q k^T * scale)`` over the keys, so that every row sums to one; ``scale`` is
    ``d ** -0.5`` unless given (Vaswani et al. 2017, eq. 1).
    """
    if scale is None:
        scale = q.shape[-1] ** -0.5
    # Scaling q and not the product: torch.compile turns "product, scale, softmax, product" back
    # into the fused kernel, which is the slow one where this form is chosen (see mechanisms.py).
    return einsum(q * scale, k, "b h n d, b h m d -> b h n m").softmax(dim=-1)


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attention with its weights: (B, H, N, d), (B, H, M, d), (B, H, M, e) -> (B, H, N, e), (B, H, N, M).

    The output of a query is the mean of the values, weighted by its attention to their keys. This is
    the explicit form: it builds the whole N x M matrix, and is the reference for every faster one.

    >>> import torch
    >>> q, k, v = torch.randn(3, 2, 4, 5, 7)
    >>> output, weights = scaled_dot_product_attention(q, k, v)
    >>> output.shape, weights.shape
    (torch.Size([2, 4, 5, 7]), torch.Size([2, 4, 5, 5]))
    """
    weights = attention_weights(q, k, scale=scale)
    return einsum(weights, v, "b h n m, b h m d -> b h n d"), weights
