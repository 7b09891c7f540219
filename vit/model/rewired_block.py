"""The block of the encoder with other connections, for experiments on what norms and skip connections are good for."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from torch import Tensor, nn

from vit.attention.multihead import Group
from vit.model.encoder_block import EncoderBlock
from vit.support.checks import check_choice, check_switch

Norm = Literal["pre", "post", "none"]


class RewiredBlock(EncoderBlock):
    """A transformer layer whose norms are elsewhere or absent, or that has no residual connections.

    With norm "post" a norm follows each sum (Vaswani et al. 2017): ``x = norm1(x + attn(x))``, then
    ``x = norm2(x + mlp(x))``. Norm "none" leaves both norms out. Without ``residual`` the branch replaces its input:
    ``x = attn(norm1(x))``. The weights have the names of ``EncoderBlock``. Norm "pre" with ``residual`` computes the
    same as that block.

    Args:
        embed_dim: Channels of a token.
        num_heads: Attention heads.
        residual: Whether each branch is added to its input.
        norm: Where the norms are.
        arguments: Further arguments of ``EncoderBlock``.

    Raises:
        ValueError: If the norm is unknown, or ``drop_path`` is above 0 without ``residual``.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, *, residual: bool = True, norm: Norm = "pre", **arguments: Any
    ) -> None:
        super().__init__(embed_dim, num_heads, **arguments)
        check_rewiring(residual, norm, arguments.get("drop_path", 0.0))
        self.residual = residual
        self.norm = norm
        if norm == "none":
            self.norm1, self.norm2 = nn.Identity(), nn.Identity()

    def forward(
        self,
        tokens: Tensor,
        grid: tuple[int, int] | None = None,
        mask: Tensor | None = None,
        angles: Tensor | None = None,
    ) -> Tensor:
        """Mix the tokens, then transform each: (B, N, D) -> (B, N, D). The arguments are those of ``EncoderBlock``."""
        pre = self.norm == "pre"
        mixed = self.attn(self.norm1(tokens) if pre else tokens, grid=grid, mask=mask, angles=angles)
        tokens = self._joined(tokens, self.ls1(self.drop(mixed)))
        tokens = tokens if pre else self.norm1(tokens)
        tokens = self._joined(tokens, self.ls2(self.mlp(self.norm2(tokens) if pre else tokens)))
        return tokens if pre else self.norm2(tokens)

    def forward_packed(self, tokens: Tensor, groups: Sequence[Group], angles: Tensor | None = None) -> Tensor:
        """Refuse packed sequences.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            f"norm {self.norm!r} and residual {self.residual} have no packed form: call forward for sequences of one "
            "length"
        )

    def _joined(self, tokens: Tensor, branch: Tensor) -> Tensor:
        return tokens + self.drop_path(branch) if self.residual else branch


def check_rewiring(residual: bool, norm: str, drop_path: float) -> None:
    """Check the arguments ``residual`` and ``norm`` of a model."""
    check_choice("norm", norm, get_args(Norm))
    check_switch("residual", residual)
    if drop_path and not residual:
        raise ValueError(
            f"drop_path ({drop_path}) skips a branch, and nothing is left of a token without residual: set it to 0"
        )
