"""Blocks of attention and MLP, for encoders and decoders, and their parts: MLP, stochastic depth, LayerScale.

Letter in the einops patterns: b batch.
"""

from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.attention import KeyValueCache, MultiHeadAttention
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


@dataclass
class DecoderCache:
    """Keys and values that one decoder block keeps between steps: of the tokens so far, and of the context, if any."""

    tokens: KeyValueCache
    context: KeyValueCache | None


class DecoderBlock(nn.Module):
    """One pre-norm decoder layer: causal self-attention, attention to a context, MLP (Vaswani et al. 2017, sec. 3.1).

    ``x = x + attn(norm1(x))``, then ``x = x + cross_attn(norm_cross(x), context)``, then ``x = x + mlp(norm2(x))``.
    Without ``context_dim`` the second line is left out, and the weights have the names of ``EncoderBlock``.

    >>> block = DecoderBlock(48, num_heads=3, context_dim=24)
    >>> block(torch.randn(2, 5, 48), torch.randn(2, 17, 24)).shape
    torch.Size([2, 5, 48])

    Args:
        embed_dim: Channels of a token.
        num_heads: Attention heads; must divide ``embed_dim``.
        context_dim: Channels of a context token; None means that there is no context.
        mlp_ratio: Width of the MLP's hidden layer, as a multiple of ``embed_dim``.
        qkv_bias: Whether the projections to queries, keys and values add a bias.
        qk_norm: Whether to layer-normalise queries and keys per head.
        attention: Name of the mechanism of self-attention, one that can be causal.
        attention_kwargs: Arguments of that mechanism.
        causal: Whether a token attends only to itself and the tokens before it.
        dropout: Probability of zeroing a channel after each projection, in [0, 1).
        drop_path: Probability that a sequence skips a residual branch, in [0, 1).

    Raises:
        ValueError: If widths do not fit, or the mechanism cannot be causal.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        context_dim: int | None = None,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        attention: str = "softmax",
        attention_kwargs: dict[str, Any] | None = None,
        causal: bool = True,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        shared = {"qkv_bias": qkv_bias, "qk_norm": qk_norm}
        self.norm1 = nn.LayerNorm(embed_dim, eps=1e-6)
        self.attn = MultiHeadAttention(
            embed_dim, num_heads, causal=causal, mechanism=attention, mechanism_kwargs=attention_kwargs, **shared
        )
        self.has_context = context_dim is not None
        if self.has_context:
            self.norm_cross = nn.LayerNorm(embed_dim, eps=1e-6)
            self.cross_attn = MultiHeadAttention(embed_dim, num_heads, context_dim=context_dim, **shared)
        self.drop = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(embed_dim, eps=1e-6)
        self.mlp = Mlp(embed_dim, int(embed_dim * mlp_ratio), dropout)
        self.drop_path = DropPath(drop_path)

    def forward(
        self,
        tokens: Tensor,
        context: Tensor | None = None,
        *,
        cache: DecoderCache | None = None,
        angles: Tensor | None = None,
    ) -> Tensor:
        """Mix each token with those before it and with the context, then transform it: (B, T, D) -> (B, T, D).

        Args:
            tokens: The tokens; with a cache, those that follow the cached ones.
            context: Encoder output that the tokens attend to, (B, M, context_dim).
            cache: Keys and values of the tokens so far and of the context, filled and extended here.
            angles: Rotary angles (T, d / 2) of the tokens' positions.

        Raises:
            ValueError: If a context is given to a block without, or missing.
        """
        if self.has_context == (context is None):
            raise ValueError(
                "this block attends to a context: pass it"
                if self.has_context
                else "this block was built without context_dim: pass no context, or give context_dim its width"
            )
        of_tokens, of_context = (None, None) if cache is None else (cache.tokens, cache.context)
        tokens = tokens + self.drop_path(self.drop(self.attn(self.norm1(tokens), cache=of_tokens, angles=angles)))
        if self.has_context:
            found = self.cross_attn(self.norm_cross(tokens), context, cache=of_context)
            tokens = tokens + self.drop_path(self.drop(found))
        return tokens + self.drop_path(self.mlp(self.norm2(tokens)))
