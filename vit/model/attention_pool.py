"""Pooling of tokens by attention of a learned query.

Letters in the einops patterns: b batch, m tokens, h heads, d channels of a head.
"""

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from vit.attention.functional import scaled_dot_product_attention
from vit.model.mlp import make_mlp

for function in ("rearrange", "repeat", "scaled_dot_product_attention"):
    torch.fx.wrap(function)  # stays one node in an fx trace: it reads sizes, which a trace does not know


class AttentionPool(nn.Module):
    """Pools tokens by attention of one learned query and an MLP (Zhai et al. 2022, fig. 4). Weights have timm's names.

    ``x = proj(attention(latent, tokens))``, then ``x + mlp(norm(x))``. One query has one row of weights, so that the
    equation needs no fused kernel.

    Raises:
        ValueError: If the heads do not divide the channels.
    """

    def __init__(self, embed_dim: int, num_heads: int, mlp_ratio: float, mlp: str, norm_eps: float) -> None:
        super().__init__()
        if embed_dim % num_heads:  # key_dim and value_dim may let the blocks have such heads
            raise ValueError(
                f"embed_dim ({embed_dim}) must be divisible by num_heads ({num_heads}) for pool 'map': take another "
                "number of heads, or pool 'mean'"
            )
        self.num_heads = num_heads
        self.latent = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.q = nn.Linear(embed_dim, embed_dim)
        self.kv = nn.Linear(embed_dim, 2 * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)
        self.norm = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.mlp = make_mlp(mlp, embed_dim, int(embed_dim * mlp_ratio), 0.0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Pool the tokens: (B, N, D) -> (B, D)."""
        query = repeat(self.q(self.latent), "1 1 (h d) -> b h 1 d", b=tokens.shape[0], h=self.num_heads)
        k, v = rearrange(self.kv(tokens), "b m (two h d) -> two b h m d", two=2, h=self.num_heads)
        attended, _ = scaled_dot_product_attention(query, k, v)
        pooled = self.proj(rearrange(attended, "b h 1 d -> b (h d)"))
        return pooled + self.mlp(self.norm(pooled))
