"""The parts of the encoder: MLP, stochastic depth, LayerScale, and the block that joins them to attention."""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.attention import MultiHeadAttention
from vit.hooks import is_watched


class Mlp(nn.Module):
    """Two linear maps with a GELU between, applied to each token by itself.

    Args:
        embed_dim: Channels of a token.
        hidden_dim: Channels between the two maps.
        dropout: Probability that a channel is zeroed after each map, in [0, 1).
    """

    def __init__(self, embed_dim: int, hidden_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, embed_dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform each token: (B, N, D) -> (B, N, D)."""
        return self.drop(self.fc2(self.drop(self.act(self.fc1(tokens)))))


class DropPath(nn.Module):
    """Stochastic depth: while training, a residual branch is left out per image (Huang et al. 2016).

    Surviving branches are scaled by ``1 / (1 - probability)``, which keeps their expected value.

    Args:
        probability: Probability that an image skips the branch, in [0, 1).
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        if not 0 <= probability < 1:
            raise ValueError(f"drop_path ({probability}) must be in [0, 1): 0.1 is usual")
        self.probability = probability
        self.active = probability > 0.0
        # A tensor and not a number, which torch.compile would compile each block anew for.
        self.register_buffer("keep", torch.tensor(1.0 - probability), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Zero or scale the branch of each image: (B, N, D) -> (B, N, D)."""
        if not self.training or not self.active:
            return tokens
        survives = torch.rand(tokens.shape[0], device=tokens.device) < self.keep
        return tokens * rearrange(survives.to(tokens.dtype) / self.keep, "b -> b 1 1")

    def extra_repr(self) -> str:
        """Show the probability when the model is printed."""
        return f"probability={self.probability:.3g}"


class LayerScale(nn.Module):
    """A learned factor per channel at the end of a residual branch (Touvron et al. 2021, CaiT, eq. 3).

    Args:
        embed_dim: Channels of a token.
        init: Value of every factor at the start, such as 1e-4: small means each block begins as identity.
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
    stochastic depth.

    Args:
        embed_dim: Channels of a token.
        num_heads: Attention heads; must divide ``embed_dim``.
        mlp_ratio: Width of the MLP's hidden layer, as a multiple of ``embed_dim``.
        qkv_bias: Whether the projections to queries, keys and values add a bias.
        qk_norm: Whether queries and keys are layer-normalised per head.
        attention: Name of the attention mechanism, a key of ``vit.attention.MECHANISMS``.
        attention_kwargs: Arguments of the mechanism.
        block_index: Number of the block, from 0; some mechanisms alternate by it.
        grid_size: Rows and columns of the patches the model is built for; some mechanisms learn maps of that size.
        dropout: Probability that a channel of a branch's output is zeroed, in [0, 1).
        drop_path: Probability that an image skips a branch, in [0, 1).
        layer_scale: Initial factor of LayerScale; None leaves it out.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
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

    def forward(self, tokens: Tensor, grid: tuple[int, int] | None = None, wanted: int | None = None) -> Tensor:
        """Mix the tokens, then transform each: (B, N, D) -> (B, N, D), or the first ``wanted`` of them alone.

        Args:
            tokens: What all attend to.
            grid: Rows and columns of the patches that end the sequence, which some mechanisms need.
            wanted: How many of the first tokens will be read; None means all.
        """
        normed = self.norm1(tokens)
        if wanted is None:
            mixed = self.attn(normed, grid=grid)
        else:
            tokens, mixed = tokens[:, :wanted], self.attn(normed[:, :wanted], context=normed)
        tokens = tokens + self.drop_path(self.ls1(self.drop(mixed)))
        return tokens + self.drop_path(self.ls2(self.mlp(self.norm2(tokens))))

    def can_leave_out_tokens(self) -> bool:
        """Whether ``wanted`` may be used: queries do not depend on each other, and nobody looks at the other tokens.

        Who has put a hook or a forward of their own on any module inside would else see fewer tokens than there are.
        """
        ours = isinstance(self.attn, MultiHeadAttention)  # not what pruning may have put there
        return ours and self.attn.mechanism.independent_queries and not any(map(is_watched, self.modules()))
