"""Parts of the encoder: MLP, stochastic depth, LayerScale, and the block of attention and MLP.

Letter in the einops patterns: b batch.
"""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.attention import MultiHeadAttention
from vit.checks import check_positive_int, check_share
from vit.hooks import is_hooked


class Mlp(nn.Module):
    """Two linear layers with a GELU between and dropout after each, applied to each token."""

    def __init__(self, embed_dim: int, hidden_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_positive_int("hidden_dim", hidden_dim, "it is embed_dim times mlp_ratio, whose usual value is 4")
        self.fc1 = nn.Linear(embed_dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, embed_dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform each token: (B, N, D) -> (B, N, D)."""
        return self.drop(self.fc2(self.drop(self.act(self.fc1(tokens)))))


class DropPath(nn.Module):
    """Stochastic depth: each training image skips a residual branch at random (Huang et al. 2016).

    Kept branches are scaled by ``1 / (1 - probability)``, which preserves their expected value.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        check_share("drop_path", probability, "0.1 is usual")
        self.probability = probability
        self.active = probability > 0.0
        # A tensor, as torch.compile would compile every block separately for different numbers. On the CPU, and no
        # buffer, it survives the meta device and to_empty, and a tensor without axes works beside any device.
        self.keep = torch.tensor(1.0 - probability, device="cpu")

    def forward(self, tokens: Tensor) -> Tensor:
        """Zero or scale the branch of each image: (B, N, D) -> (B, N, D)."""
        if not self.training or not self.active:
            return tokens
        is_kept = torch.rand(tokens.shape[0], device=tokens.device) < self.keep
        return tokens * rearrange(is_kept.to(tokens.dtype) / self.keep, "b -> b 1 1")

    def extra_repr(self) -> str:
        """Show the probability when the model is printed."""
        return f"probability={self.probability:.3g}"


class LayerScale(nn.Module):
    """A learned factor per channel at the end of a residual branch (Touvron et al. 2021, CaiT, eq. 3).

    A small ``init``, such as 1e-4, makes each block start near the identity.
    """

    def __init__(self, embed_dim: int, init: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((embed_dim,), float(init)))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scale the channels: (B, N, D) -> (B, N, D)."""
        return tokens * self.gamma


class EncoderBlock(nn.Module):
    """One pre-norm transformer layer (Dosovitskiy et al. 2021, eq. 2 and 3).

    ``x = x + attn(norm1(x))``, then ``x = x + mlp(norm2(x))``; each branch may end in LayerScale and
    stochastic depth. The arguments are those of ``VisionTransformer``, and two of ``MultiHeadAttention``:
    ``block_index`` and ``grid_size``. Here ``drop_path`` is the probability of this block.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        num_kv_heads: int | None = None,
        tie_qkv: bool = False,
        tie_kv: bool = False,
        qk_norm: bool = False,
        attention: str = "softmax",
        attention_kwargs: dict[str, Any] | None = None,
        block_index: int = 0,
        grid_size: tuple[int, int] | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim, eps=1e-6)
        self.attn = MultiHeadAttention(
            embed_dim,
            num_heads,
            qkv_bias=qkv_bias,
            num_kv_heads=num_kv_heads,
            tie_qkv=tie_qkv,
            tie_kv=tie_kv,
            qk_norm=qk_norm,
            mechanism=attention,
            mechanism_kwargs=attention_kwargs,
            block_index=block_index,
            grid_size=grid_size,
        )
        self.drop = nn.Dropout(dropout)
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(embed_dim, layer_scale)
        self.norm2 = nn.LayerNorm(embed_dim, eps=1e-6)
        self.mlp = Mlp(embed_dim, int(embed_dim * mlp_ratio), dropout)
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(embed_dim, layer_scale)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """Mix the tokens, then transform each: (B, N, D) -> (B, N, D).

        Args:
            tokens: Prefix tokens, if any, and patches.
            grid: Rows and columns of the patches that end the sequence; some mechanisms need it.
        """
        tokens = tokens + self.drop_path(self.ls1(self.drop(self.attn(self.norm1(tokens), grid=grid))))
        return tokens + self.drop_path(self.ls2(self.mlp(self.norm2(tokens))))

    def forward_class_token(self, tokens: Tensor) -> Tensor:
        """Compute only the first token, which is all that the head reads of the last block: (B, N, D) -> (B, 1, D)."""
        normed = self.norm1(tokens)
        mixed = self.attn(normed[:, :1], context=normed)
        tokens = tokens[:, :1] + self.drop_path(self.ls1(self.drop(mixed)))
        return tokens + self.drop_path(self.ls2(self.mlp(self.norm2(tokens))))

    def supports_class_token_only(self) -> bool:
        """Return whether ``forward_class_token`` equals ``forward``, and no hook or replaced forward is bypassed."""
        return (
            type(self).forward is EncoderBlock.forward
            and isinstance(self.attn, MultiHeadAttention)  # pruning may have replaced it
            and self.attn.mechanism.independent_queries
            and not any(map(is_hooked, self.modules()))
        )
