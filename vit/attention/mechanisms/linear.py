"""Attention in time and memory that grow with N, by a separable (feature-map) kernel in place of the softmax.

``softmax(q k^T)_nm = exp(q_n . k_m) / sum_m exp(q_n . k_m)`` needs every pair of query and key. With
``phi(q_n) . phi(k_m)`` in place of the exponential, one sum over the keys serves all queries.

Letters in the einops patterns: b batch, h heads, n queries, m keys, d channels per head, f features, g chunks, l tokens
of a chunk.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor

from vit.attention.mechanisms.float32 import advance_in_float32, in_float32
from vit.attention.mechanisms.initial_weights import set_values
from vit.attention.mechanisms.mechanism import Mechanism
from vit.attention.qkv_checks import check_has_keys
from vit.support.checks import check_positive_int

CHUNK = 64  # tokens whose pairs causal attention forms; with all pairs it would cost as much as softmax attention


class LinearAttention(Mechanism):
    """Kernel attention with ``phi(x) = elu(x) + 1`` (Katharopoulos et al. 2020, eq. 5 and 7).

    ``output_n = phi(q_n) sum_m phi(k_m)^T v_m / (phi(q_n) . sum_m phi(k_m))``, which costs O(N d^2). Sums are
    computed in float32 or wider. Below about 256 tokens it is slower than softmax attention, and its attention is less
    sharp. Causal attention is a recurrent network (sec. 3.3): the sums over the tokens so far are its state.
    """

    independent_queries: ClassVar[bool] = True
    rotated_parts: ClassVar[int] = 0
    has_state: ClassVar[bool] = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, e) -> (B, H, N, e)."""
        if causal:
            return self.advance(q, k, v, None)[0]
        return in_float32(lambda q, k, v: kernel_attention(query_features(q), elu_plus_one(k), v), q, k, v)

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute causal attention of new tokens, and the sums over all tokens so far, (B, H, d, e + 1)."""
        return advance_in_float32(
            lambda q, k, v: causal_kernel_attention(query_features(q), elu_plus_one(k), v, state), q, k, v
        )


class RandomFeatureAttention(Mechanism):
    """Kernel attention that converges to softmax attention with more features (Choromanski et al. 2021, Performer).

    ``phi(x) = exp(W x - |x|^2 / 2) / sqrt(f)`` with random orthogonal rows of W, for x scaled by ``d ** -0.25``: the
    expected value of ``phi(q) . phi(k)`` is ``exp(q . k / sqrt(d))``. The error falls with the square root of
    ``num_features`` and grows fast with the norms of queries and keys, so use ``qk_norm`` or keep the logits small. W
    is drawn once, and saved with the weights. With rotary positions, only the expected value depends on
    distances alone.

    Args:
        num_features: Number f of random features.
    """

    independent_queries: ClassVar[bool] = True

    def __init__(self, head_dim: int, num_features: int = 64) -> None:
        super().__init__()
        check_positive_int("num_features", num_features)
        self.register_buffer("projection", torch.empty(num_features, head_dim))
        self.init_weights()

    def init_weights(self) -> None:
        """Draw the random features."""
        set_values(self.projection, orthogonal_rows(*self.projection.shape))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, e) -> (B, H, N, e)."""
        return in_float32(self._attend, q, k, v)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        check_has_keys(q, k)
        q, k = self._exponents(q), self._exponents(k)
        # A common factor of all features of a query, or of all features of all keys, cancels in the quotient. These two
        # factors prevent overflow.
        q_features = (q - q.detach().amax(dim=-1, keepdim=True)).exp()
        k_features = (k - k.detach().amax(dim=(-2, -1), keepdim=True)).exp()
        return kernel_attention(q_features, k_features, v)

    def _exponents(self, x: Tensor) -> Tensor:
        x = x * x.shape[-1] ** -0.25
        projected = einsum(x, self.projection.to(x.dtype), "b h n d, f d -> b h n f")
        return projected - x.square().sum(dim=-1, keepdim=True) / 2


def elu_plus_one(x: Tensor) -> Tensor:
    """Compute ``elu(x) + 1``: ``x + 1`` above zero and ``exp(x)`` below, positive and smooth."""
    # torch.compile fails on F.elu, whose gradient has unexpected strides (backend "aot_eager", torch 2.15).
    return x.relu() + x.clamp(max=0).exp()


def query_features(x: Tensor) -> Tensor:
    """Compute ``elu(x) + 1``, divided by its largest feature: a factor of a query cancels in the quotient of the sums.

    Otherwise the products of a query whose channels are all below about -44 would underflow.
    """
    features = elu_plus_one(x)
    return features / features.detach().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)


def kernel_attention(q_features: Tensor, k_features: Tensor, v: Tensor) -> Tensor:
    """Attend by products of non-negative features: (B, H, N, f), (B, H, M, f), (B, H, M, e) -> (B, H, N, e)."""
    summary = einsum(k_features, v, "b h m f, b h m d -> b h f d")
    numerator = einsum(q_features, summary, "b h n f, b h f d -> b h n d")
    denominator = einsum(q_features, k_features.sum(dim=-2), "b h n f, b h f -> b h n")
    return _quotient(numerator, denominator[..., None])


def causal_kernel_attention(
    q_features: Tensor, k_features: Tensor, v: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attend to the keys so far: (B, H, N, f), (B, H, M, f), (B, H, M, e) -> (B, H, N, e), state (B, H, f, e + 1).

    The state is the sum of ``phi(k_m)^T [v_m, 1]``, whose last column makes the denominators. Queries are the last N of
    the M positions. Within a chunk all pairs are formed; the tokens before a chunk enter through the state.
    """
    n, m = q_features.shape[-2], k_features.shape[-2]
    v = F.pad(v, (0, 1), value=1.0)
    earlier = einsum(k_features[..., : m - n, :], v[..., : m - n, :], "b h m f, b h m d -> b h f d")
    state = earlier if state is None else state + earlier
    q, k, v = (
        rearrange(F.pad(x, (0, 0, 0, -n % CHUNK)), "b h (g l) d -> b h g l d", l=CHUNK)
        for x in (q_features, k_features[..., m - n :, :], v[..., m - n :, :])
    )
    of_chunks = einsum(k, v, "b h g m f, b h g m d -> b h g f d")
    states = torch.cat([rearrange(state, "b h f d -> b h 1 f d"), of_chunks], dim=2).cumsum(dim=2)
    pairs = einsum(q, k, "b h g n f, b h g m f -> b h g n m").tril()
    sums = einsum(pairs, v, "b h g n m, b h g m d -> b h g n d")
    sums = sums + einsum(q, states[:, :, :-1], "b h g n f, b h g f d -> b h g n d")
    sums = rearrange(sums, "b h g l d -> b h (g l) d")[..., :n, :]
    return _quotient(sums[..., :-1], sums[..., -1:]), states[:, :, -1]


def _quotient(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide sums of values by sums of weights; if all products of a query underflow, its output is zero."""
    underflows = denominator < torch.finfo(numerator.dtype).tiny ** 0.5
    return numerator / denominator.masked_fill(underflows, 1.0)


def orthogonal_rows(rows: int, dim: int) -> Tensor:
    """Draw random rows with the norms of Gaussian ones, orthogonal in groups of ``dim``: (rows, dim).

    Orthogonality lowers the variance of the kernel (Choromanski et al. 2021, sec. 3.3).
    """
    blocks = []
    for _ in range(-(-rows // dim)):
        q, r = torch.linalg.qr(torch.randn(dim, dim))
        # The algorithm chooses the signs of R's diagonal. Q is uniformly distributed only after multiplying by them.
        blocks.append((q * r.diagonal().sign()).mT)
    lengths = torch.randn(rows, dim).norm(dim=-1, keepdim=True)
    return torch.cat(blocks)[:rows] * lengths
