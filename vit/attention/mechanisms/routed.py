"""Attention whose heads are chosen for each image, or for each token.

Letters in the einops patterns: b batch, h heads, n tokens, c channels of a token, k chosen heads.
"""

from typing import Literal, get_args

import torch
from einops import einsum, rearrange, reduce
from torch import Tensor, nn

from vit.attention.functional import attention_weights
from vit.attention.mechanisms.mechanism import Mechanism
from vit.attention.mechanisms.softmax_kernels import attend
from vit.attention.qkv_checks import check_qkv
from vit.support.checks import check_choice, check_positive_int
from vit.support.precision import at_least_float32

Chooser = Literal["image", "token"]


class RoutedAttention(Mechanism):
    """Softmax attention of ``k`` heads, which a router chooses for each image (mixture of heads, Jin et al. 2024).

    A linear map of the mean token gives each head a logit. The heads of the ``k`` largest logits are computed, and each
    output is multiplied by its gate; the remaining heads are zero. Gates are H times the softmax of the H logits, so
    that equal logits give gates of one, which with all heads is softmax attention. Queries, keys and values of all
    heads are projected. No loss makes the router use its heads evenly.

    With ``by="token"``, as in the paper, each token has its own choice and gates. This saves no time: all heads are
    computed, as another token may choose a head that one token leaves out.

    Args:
        k: Heads that are computed; None means half of them, rounded up.
        by: What the router chooses heads for, "image" or "token".
    """

    def __init__(self, embed_dim: int, num_heads: int, k: int | None = None, by: Chooser = "image") -> None:
        super().__init__()
        if k is not None:
            check_positive_int("k", k)
        if k is not None and k > num_heads:
            raise ValueError(f"k ({k}) heads are more than num_heads ({num_heads}): take at most {num_heads}")
        check_choice("by", by, get_args(Chooser))
        self.k = -(-num_heads // 2) if k is None else k
        self.by = by
        self.router = nn.Parameter(torch.empty(num_heads, embed_dim))
        self.init_weights()

    def init_weights(self) -> None:
        """Draw the router, normal, so small that gates start near one."""
        nn.init.normal_(self.router, std=0.02)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, tokens: Tensor) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, e), tokens (B, N, D) -> (B, H, N, e)."""
        check_qkv(q, k, v)
        heads, gates = self.route(tokens)
        if self.by == "token":
            return attend(q, k, v) * self._spread(heads, gates).to(v.dtype)
        of_images = _rows(heads), heads
        mixed = attend(*(x[of_images] for x in (q, k, v)))
        return _put_back(mixed * rearrange(gates, "b k -> b k 1 1").to(mixed.dtype), of_images, q.shape[1])

    def weights(self, q: Tensor, k: Tensor, *, tokens: Tensor) -> Tensor:
        """Compute the weights times the gates, zero for heads left out: (B, H, N, d), (B, H, M, d) -> (B, H, N, M)."""
        heads, gates = self.route(tokens)
        if self.by == "token":
            return attention_weights(q, k) * self._spread(heads, gates).to(q.dtype)
        of_images = _rows(heads), heads
        weights = attention_weights(q[of_images], k[of_images])
        return _put_back(weights * rearrange(gates, "b k -> b k 1 1").to(weights.dtype), of_images, q.shape[1])

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the chosen heads and their gates: (B, N, D) -> numbers and floats (B, k), or (B, N, k) by token.

        Logits are computed in float32 or wider, so that autocast changes no choice.
        """
        with torch.autocast(tokens.device.type, enabled=False):
            tokens = at_least_float32(tokens)
            chooser = tokens if self.by == "token" else reduce(tokens, "b n c -> b c", "mean")
            logits = einsum(chooser, self.router.to(chooser.dtype), "b ... c, h c -> b ... h")
            chosen = (len(self.router) * logits.softmax(dim=-1)).topk(self.k, dim=-1)
            return chosen.indices, chosen.values

    def _spread(self, heads: Tensor, gates: Tensor) -> Tensor:
        """Put the gates of tokens in the places of their heads among zeros: (B, N, k) -> (B, H, N, 1)."""
        empty = gates.new_zeros(*gates.shape[:2], len(self.router))
        return rearrange(empty.scatter(-1, heads, gates), "b n h -> b h n 1")


def _rows(heads: Tensor) -> Tensor:
    """Return the number of the image beside each chosen head: (B, 1)."""
    return rearrange(torch.arange(heads.shape[0], device=heads.device), "b -> b 1")


def _put_back(chosen: Tensor, of_images: tuple[Tensor, Tensor], heads: int) -> Tensor:
    """Put chosen heads in their places among zeros: (B, k, N, d) -> (B, H, N, d)."""
    empty = torch.zeros_like(chosen[:, :1]).expand(-1, heads, -1, -1)
    return empty.index_put(of_images, chosen)
