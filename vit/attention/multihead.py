"""Multi-head self-attention: the projections and heads around a mechanism.

Letters in the einops patterns: b batch, n tokens, h heads, d channels per head.
"""

from typing import Any

from einops import rearrange
from torch import Tensor, nn

from vit.attention.mechanisms import MECHANISMS


class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each on its own slice of the channels.

    ``concat(head_1, ..., head_H) W_proj``, where head i attends with its own projections of the tokens
    to queries, keys and values (Vaswani et al. 2017, sec. 3.2.2). The three projections are one fused
    matrix ``qkv``, in the order and under the names of timm and of ``nn.MultiheadAttention.in_proj``.

    Args:
        embed_dim: Channels of a token.
        num_heads: Attention heads; must divide ``embed_dim``.
        qkv_bias: Whether the projections to queries, keys and values add a bias.
        qk_norm: Whether queries and keys are layer-normalised per head, which keeps the logits bounded
            (Dehghani et al. 2023).
        mechanism: Name of the mechanism inside, a key of ``MECHANISMS``.
        mechanism_kwargs: Arguments of the mechanism.

    Raises:
        ValueError: If ``num_heads`` does not divide ``embed_dim``, or the mechanism is unknown.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        mechanism: str = "softmax",
        mechanism_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(
                f"embed_dim ({embed_dim}) must be divisible by num_heads ({num_heads}): "
                f"take embed_dim {embed_dim - embed_dim % num_heads or num_heads}, or another number of heads"
            )
        if mechanism not in MECHANISMS:
            raise ValueError(f"unknown attention {mechanism!r}: choose one of {', '.join(MECHANISMS)}")
        head_dim = embed_dim // num_heads
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=qkv_bias)
        self.q_norm = nn.LayerNorm(head_dim, eps=1e-6) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(head_dim, eps=1e-6) if qk_norm else nn.Identity()
        self.mechanism = MECHANISMS[mechanism](**(mechanism_kwargs or {}))
        self.proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Let every token gather from all tokens: (B, N, D) -> (B, N, D)."""
        q, k, v = self.heads(tokens)
        return self.proj(rearrange(self.mechanism(q, k, v), "b h n d -> b n (h d)"))

    def weights(self, tokens: Tensor) -> Tensor:
        """Attention of each head, every token over every token: (B, N, D) -> (B, H, N, N)."""
        q, k, _ = self.heads(tokens)
        return self.mechanism.weights(q, k)

    def heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project to the queries, keys and values of each head: (B, N, D) -> three of (B, H, N, d)."""
        q, k, v = rearrange(self.qkv(tokens), "b n (qkv h d) -> qkv b h n d", qkv=3, h=self.num_heads)
        # LayerNorm returns float32 under autocast on CUDA; attention wants one dtype for all three.
        return self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype), v
