"""The block of the encoder: attention and MLP."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vit.attention import AttentionName, MultiHeadAttention
from vit.attention.multihead import Group
from vit.model.mlp import make_mlp
from vit.model.residual_branch import DropPath, LayerScale
from vit.support.hooks import is_hooked


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
        mlp: str = "gelu",
        qkv_bias: bool = True,
        key_dim: int | None = None,
        value_dim: int | None = None,
        num_kv_heads: int | None = None,
        tie_qkv: bool = False,
        tie_kv: bool = False,
        qk_norm: bool = False,
        attention: AttentionName = "softmax",
        attention_kwargs: dict[str, Any] | None = None,
        block_index: int = 0,
        grid_size: tuple[int, int] | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.attn = MultiHeadAttention(
            embed_dim,
            num_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            qkv_bias=qkv_bias,
            num_kv_heads=num_kv_heads,
            tie_qkv=tie_qkv,
            tie_kv=tie_kv,
            qk_norm=qk_norm,
            norm_eps=norm_eps,
            mechanism=attention,
            mechanism_kwargs=attention_kwargs,
            block_index=block_index,
            grid_size=grid_size,
        )
        self.drop = nn.Dropout(dropout)
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(embed_dim, layer_scale)
        self.norm2 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.mlp = make_mlp(mlp, embed_dim, int(embed_dim * mlp_ratio), dropout)
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(embed_dim, layer_scale)
        self.drop_path = DropPath(drop_path)

    def forward(
        self,
        tokens: Tensor,
        grid: tuple[int, int] | None = None,
        mask: Tensor | None = None,
        angles: Tensor | None = None,
    ) -> Tensor:
        """Mix the tokens, then transform each: (B, N, D) -> (B, N, D).

        Args:
            tokens: Prefix tokens, if any, and patches.
            grid: Rows and columns of the patches that end the sequence; some mechanisms need it.
            mask: Mask of attention, as in ``MultiHeadAttention.forward``.
            angles: Rotary angles of the tokens, (N, d / 2) or (B, N, d / 2).
        """
        return self._add_branches(tokens, self.attn(self.norm1(tokens), grid=grid, mask=mask, angles=angles))

    if TYPE_CHECKING:  # the calls of nn.Module return Any
        __call__: Callable[..., Tensor]

    def forward_packed(self, tokens: Tensor, groups: Sequence[Group], angles: Tensor | None = None) -> Tensor:
        """Compute ``forward`` for packed sequences of several lengths, in eval mode: (1, T, D) -> (1, T, D).

        The arguments are those of ``MultiHeadAttention.forward_packed``.
        """
        return self._add_branches(tokens, self.attn.forward_packed(self.norm1(tokens), groups, angles))

    def _add_branches(self, tokens: Tensor, mixed: Tensor) -> Tensor:
        """Add the mixed tokens, then the MLP's output: twice (B, N, D) -> (B, N, D)."""
        tokens = tokens + self.drop_path(self.ls1(self.drop(mixed)))
        return tokens + self.drop_path(self.ls2(self.mlp(self.norm2(tokens))))

    def is_plain(self) -> bool:
        """Return whether the block and its attention are the ones of this package, and neither has hooks."""
        return (
            type(self).forward is EncoderBlock.forward
            and isinstance(self.attn, MultiHeadAttention)  # pruning may have replaced it
            and type(self.attn).forward is MultiHeadAttention.forward
            and not is_hooked(self)
            and not is_hooked(self.attn)
        )
