"""The formulas of attention, as pure functions on tensors.

Letters in the einops patterns: b batch, n queries, m keys, h heads, d channels, y x rows and columns of patches, u w
those of a kernel.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor

from vit.attention.masks import causal_mask, masked_softmax
from vit.attention.qkv_checks import check_qkv
from vit.support.checks import check_choice


def simplified_attention(x: Tensor, similarity: Literal["dot", "cosine"] = "dot") -> tuple[Tensor, Tensor]:
    """Compute self-attention without parameters: (B, N, D) -> output (B, N, D), weights (B, N, N).

    ``weights = softmax(x x^T)`` and ``output = weights x``: each token becomes a mean of all tokens, itself included,
    and similar tokens weigh more. Similarity is the dot product, which grows with the norms of the tokens, or the
    cosine of their angle. There is no scale and no projection, hence nothing to learn. For tokens of large norm, "dot"
    puts almost all weight on one token, while "cosine" always spreads it over all; scaled dot products lie between.

    >>> x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> output, weights = simplified_attention(x)
    >>> weights.round(decimals=3)  # e / (e + 1) and 1 / (e + 1)
    tensor([[[0.7310, 0.2690],
             [0.2690, 0.7310]]])

    Raises:
        ValueError: If ``similarity`` is neither "dot" nor "cosine", or ``x`` does not have three axes.
    """
    if x.ndim != 3:
        raise ValueError(
            f"x has shape {tuple(x.shape)}, and simplified attention takes (batch, tokens, channels): give one "
            "sequence as x[None]"
        )
    check_choice("similarity", similarity, ("dot", "cosine"))
    keys = x if similarity == "dot" else F.normalize(x, dim=-1)
    weights = einsum(keys, keys, "b n d, b m d -> b n m").softmax(dim=-1)
    return einsum(weights, x, "b n m, b m d -> b n d"), weights


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Compute attention and its weights: (B, H, N, d), (B, H, M, d), (B, H, M, e) -> (B, H, N, e), (B, H, N, M).

    ``softmax(q k^T * scale) v``: the output of a query is the mean of the values, weighted by its attention
    to their keys (Vaswani et al. 2017, eq. 1). This explicit form builds the whole N x M matrix, and is the reference
    for the faster ones.

    >>> q, k, v = torch.randn(3, 2, 4, 5, 7)
    >>> output, weights = scaled_dot_product_attention(q, k, v, causal=True)
    >>> output.shape, weights.shape
    (torch.Size([2, 4, 5, 7]), torch.Size([2, 4, 5, 5]))

    Args:
        q: Queries.
        k: Keys.
        v: Values, one for each key.
        mask: Mask broadcastable to (B, H, N, M): boolean, True where a query may attend to a key, or floats to add to
            the logits. The output of a query that may attend to no key is zero. A finite number that all keys of a
            query share, such as -1e9, changes nothing, as it changes no softmax.
        causal: Whether a query attends only to the keys up to its own position. With fewer queries than keys, the
            queries are the last positions.
        scale: Factor of the products; None means ``d ** -0.5``, which keeps their variance at one if that of queries
            and keys is one.

    Raises:
        ValueError: If shapes, dtypes or devices do not fit together.
    """
    check_qkv(q, k, v)
    weights = attention_weights(q, k, mask=mask, causal=causal, scale=scale)
    return weights @ v, weights


def attention_weights(
    q: Tensor, k: Tensor, *, mask: Tensor | None = None, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Compute how much each query attends to each key: (B, H, N, d), (B, H, M, d) -> (B, H, N, M); rows sum to one.

    The arguments are those of ``scaled_dot_product_attention``.
    """
    return masked_softmax(attention_logits(q, k, scale), mask, causal)


def attention_logits(q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
    """Compute scaled products of queries and keys: (B, H, N, d), (B, H, M, d) -> (B, H, N, M).

    ``scale`` is ``d ** -0.5`` unless given.
    """
    if scale is None:
        scale = q.shape[-1] ** -0.5
    # q is scaled, not the product: torch.compile turns "product, scale, softmax, product" back into the fused kernel,
    # which is the slower one when this form is chosen (see mechanisms/softmax_kernels.py). An einsum would copy the
    # keys: 10.5 ms against 9.3 ms forward and backward for a 192x6 layer in bfloat16.
    return (q * scale) @ rearrange(k, "b h m d -> b h d m")


def additive_logits(q: Tensor, k: Tensor, direction: Tensor) -> Tensor:
    """Compute ``direction . tanh(q + k)`` for each pair: (B, H, N, d), (B, H, M, d), (H, d) -> (B, H, N, M).

    The projections to queries and keys are the matrices W and U of ``v^T tanh(W x + U c)`` (Bahdanau et al. 2015), and
    ``direction`` is the vector v of each head. A sum of channels for each pair takes d times the memory of a product.
    """
    sums = rearrange(q, "b h n d -> b h n 1 d") + rearrange(k, "b h m d -> b h 1 m d")
    return einsum(sums.tanh(), direction, "b h n m d, h d -> b h n m")


def shifted_sum(v: Tensor, kernel: Tensor, grid: tuple[int, int]) -> Tensor:
    """Sum the values around each patch, with one weight for each offset: (B, H, N, e), (H, k, k) -> (B, H, N, e).

    ``output[y, x] = sum_uw kernel[u, w] v[y + u - k // 2, x + w - k // 2]``, where values beyond the border are zero.
    ``grid`` is the rows and columns of the patches.
    """
    images = rearrange(v, "b h (y x) d -> (b d) h y x", y=grid[0])
    summed = F.conv2d(images, rearrange(kernel, "h u w -> h 1 u w"), padding=kernel.shape[-1] // 2, groups=v.shape[1])
    return rearrange(summed, "(b d) h y x -> b h (y x) d", d=v.shape[-1])


def gated_scan(x: Tensor, keep: Tensor, state: Tensor | None = None) -> Tensor:
    """Compute the states ``s_n = keep_n s_(n-1) + x_n``: (B, H, N, e), (B, H, N, 1) -> (B, H, N, e).

    All states are computed at once, in log2(N) rounds: after a round, each sum reaches twice as far back.

    >>> x, keep = torch.ones(1, 1, 4, 1), torch.full((1, 1, 4, 1), 0.5)
    >>> gated_scan(x, keep).flatten()
    tensor([1.0000, 1.5000, 1.7500, 1.8750])

    Args:
        x: What each token adds.
        keep: Share of the state that each token keeps.
        state: The state before the first token, (B, H, 1, e); None means zeros.
    """
    if state is not None:
        x = torch.cat([x[..., :1, :] + keep[..., :1, :] * state, x[..., 1:, :]], dim=-2)
    reach = 1
    while reach < x.shape[-2]:
        x = x + keep * F.pad(x[..., :-reach, :], (0, 0, reach, 0))
        keep = keep * F.pad(keep[..., :-reach, :], (0, 0, reach, 0))
        reach *= 2
    return x


def gated_weights(logits: Tensor) -> Tensor:
    """Compute the share of each token in each state of a gated scan: (B, H, M) -> (B, H, M, M).

    A token keeps ``f = sigmoid(logits)`` of the state and adds ``1 - f`` of its value, so that the weight of token m in
    state n is ``(1 - f_m) f_(m+1) ... f_n``, and zero for m > n.
    """
    kept = F.logsigmoid(logits).cumsum(dim=-1)
    products = rearrange(kept, "b h n -> b h n 1") - rearrange(kept, "b h m -> b h 1 m")
    past = causal_mask(*products.shape[-2:], products.device)
    return products.masked_fill(~past, -torch.inf).exp() * rearrange((-logits).sigmoid(), "b h m -> b h 1 m")


def rotate(x: Tensor, angles: Tensor, parts: int = 1) -> Tensor:
    """Turn pairs of channels by an angle for each position: (B, H, N, d), (N, d / 2) -> (B, H, N, d).

    Channels i and i + d / 2 form a pair. Angles (B, N, d / 2) give each sequence its own. The product of a rotated
    query and a rotated key depends on the difference of their positions (Su et al. 2021). With several ``parts``, each
    part of the channels turns like a separate head, by every ``parts``-th angle.

    Raises:
        ValueError: If the angles have another shape.
    """
    if angles.shape[-2:] != (x.shape[2], x.shape[3] / 2) or angles.ndim not in (2, 3):
        raise ValueError(
            f"angles have shape {tuple(angles.shape)}, and the tokens need ({x.shape[2]}, {x.shape[3] // 2}): compute "
            "them by rotary_angles for the positions of these tokens"
        )
    if parts > 1:
        return torch.cat([rotate(part, angles[..., ::parts]) for part in x.chunk(parts, dim=-1)], dim=-1)
    if angles.ndim == 3:
        angles = rearrange(angles, "b n d -> b 1 n d")
    first, second = rearrange(x, "b h n (two d) -> two b h n d", two=2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    # Not einops.pack, which cannot infer the number of channels of an empty batch.
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
