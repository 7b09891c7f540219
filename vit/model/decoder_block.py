"""The block of a decoder (causal self-attention, attention to a context, MLP), and its cache between steps."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vit.attention import AttentionName, KeyValueCache, MultiHeadAttention, StateCache
from vit.attention.cache import restored_on_error
from vit.model.mlp import Mlp
from vit.model.residual_branch import DropPath


@dataclass
class DecoderCache:
    """The caches of a decoder block between steps: of the tokens so far, and of the context if any."""

    tokens: KeyValueCache | StateCache
    context: KeyValueCache | None

    def __copy__(self) -> "DecoderCache":
        """Copy the tensors as well: steps of two caches that share their memory would overwrite each other."""
        return copy.deepcopy(self)

    @property
    def parts(self) -> list[KeyValueCache | StateCache]:
        """The caches that are there."""
        return [self.tokens] if self.context is None else [self.tokens, self.context]


class PrefixAttention(MultiHeadAttention):
    """Causal self-attention, in which a given mask replaces the causal mask.

    So the tokens of a prefix can see each other both ways (Raffel et al. 2020, fig. 4), and caches still work.
    """

    def _inputs(
        self, names: frozenset[str], x: Tensor, mask: Tensor | None, grid: tuple[int, int] | None
    ) -> dict[str, Any]:
        inputs = super()._inputs(names, x, mask, grid)
        return inputs if mask is None else inputs | {"causal": False}


class DecoderBlock(nn.Module):
    """One pre-norm decoder layer: causal self-attention, attention to a context, MLP (Vaswani et al. 2017, sec. 3.1).

    ``x = x + attn(norm1(x))``, then ``x = x + cross_attn(norm_cross(x), context)``, then ``x = x + mlp(norm2(x))``.
    If ``context_dim`` is None, the second step is left out, and the weights have the names of ``EncoderBlock``.

    >>> import torch
    >>> block = DecoderBlock(48, num_heads=3, context_dim=24)
    >>> block(torch.randn(2, 5, 48), torch.randn(2, 17, 24)).shape
    torch.Size([2, 5, 48])

    Args:
        embed_dim: Channels of a token.
        num_heads: Attention heads; must divide ``embed_dim``.
        num_kv_heads: Heads of keys and values, each shared by equally many query heads, which makes the cache smaller
            (Shazeer 2019; Ainslie et al. 2023); None means ``num_heads``.
        context_dim: Channels of a context token. None means no context.
        mlp_ratio: Width of the MLP's hidden layer, as a multiple of ``embed_dim``.
        qkv_bias: Whether the projections to queries, keys and values add a bias.
        qk_norm: Whether to layer-normalise queries and keys per head.
        attention: Name of the mechanism of self-attention. If ``causal`` is True, it must support causal attention.
        attention_kwargs: Arguments of this mechanism.
        causal: Whether a token attends only to itself and the tokens before it.
        dropout: Probability of zeroing a channel after each projection, in [0, 1).
        drop_path: Probability that a sequence skips a residual branch, in [0, 1).
        block_index: Number of the block, from 0, on which the initial lambda of differential attention depends.

    Raises:
        ValueError: If widths do not fit, or the mechanism cannot be causal.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        context_dim: int | None = None,
        num_kv_heads: int | None = None,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        attention: AttentionName = "softmax",
        attention_kwargs: dict[str, Any] | None = None,
        causal: bool = True,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        block_index: int = 0,
    ) -> None:
        super().__init__()
        shared = {"num_kv_heads": num_kv_heads, "qkv_bias": qkv_bias, "qk_norm": qk_norm}
        mechanism = {"mechanism": attention, "mechanism_kwargs": attention_kwargs, "block_index": block_index}
        self.norm1 = nn.LayerNorm(embed_dim, eps=1e-6)
        self.attn = PrefixAttention(embed_dim, num_heads, causal=causal, **mechanism, **shared)
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
        mask: Tensor | None = None,
    ) -> Tensor:
        """Mix each token with the tokens before it and with the context, then transform it: (B, T, D) -> (B, T, D).

        Args:
            tokens: The tokens. If there is a cache, only the tokens after the cached tokens.
            context: Encoder output that the tokens attend to, (B, M, context_dim).
            cache: Caches of the tokens so far and of the context. This call fills and extends them, unless it raises an
                error.
            angles: Rotary angles (T, d / 2) of the tokens' positions.
            mask: Which token (row) attends to which (column), (T, T), in place of the causal mask.

        Raises:
            ValueError: If the block needs a context and none is given, or a context is given and it needs none.
        """
        if self.has_context == (context is None):
            raise ValueError(
                "this block attends to a context: pass it"
                if self.has_context
                else "this block was built without context_dim: pass no context, or give context_dim its width"
            )
        of_tokens, of_context = (None, None) if cache is None else (cache.tokens, cache.context)
        with restored_on_error([] if cache is None else cache.parts):
            found = self.attn(self.norm1(tokens), cache=of_tokens, angles=angles, mask=mask)
            tokens = tokens + self.drop_path(self.drop(found))
            if self.has_context:
                found = self.cross_attn(self.norm_cross(tokens), context, cache=of_context)
                tokens = tokens + self.drop_path(self.drop(found))
            return tokens + self.drop_path(self.mlp(self.norm2(tokens)))

    if TYPE_CHECKING:  # the calls of nn.Module return Any
        __call__: Callable[..., Tensor]
