"""Recurrence as attention: each token sees the ones before it through one state.

Letters in the einops patterns: b batch, h heads, n tokens, d channels per head, y x rows and columns of patches.
"""

from typing import ClassVar, Literal, get_args

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

from vit.attention.functional import gated_scan, gated_weights
from vit.attention.mechanisms.float32 import advance_in_float32
from vit.attention.mechanisms.grid import Grid, prefix_length
from vit.attention.mechanisms.initial_weights import set_values
from vit.attention.mechanisms.mechanism import Mechanism
from vit.attention.qkv_checks import check_are_last
from vit.support.checks import check_choice
from vit.support.precision import at_least_float32

Route = Literal["rows", "snake"]
LONGEST = 4.0  # log of the number of tokens that the last head remembers initially, about 55


class RecurrentAttention(Mechanism):
    """A gated recurrent network, ``s_n = f_n s_(n-1) + (1 - f_n) v_n`` (minGRU, Feng et al. 2024, one gate a head).

    The output is the state. The gate ``f_n = sigmoid(u . k_n + b)`` depends only on its token, so a scan computes all
    states at once. The weight of a token is its share of a state. Queries are projected but not used, so that the model
    has the same size as with softmax attention. Sums are computed in float32 or wider.

    It is always causal. In an image it reads the patches along a path, then the prefix tokens (class token, registers).
    So a class token sees the whole image, and a patch sees the patches before it.

    Args:
        path: Order of the patches: "rows", each from left to right, or "snake", which reads every other row backwards,
            so that each step goes to a neighbour.
    """

    rotated_parts: ClassVar[int] = 0
    has_state: ClassVar[bool] = True

    def __init__(self, num_heads: int, head_dim: int, path: Route = "rows") -> None:
        super().__init__()
        check_choice("path", path, get_args(Route))
        self.path = path
        self.gate = nn.Parameter(torch.empty(num_heads, head_dim))
        self.gate_bias = nn.Parameter(torch.empty(num_heads))
        self.init_weights()

    def init_weights(self) -> None:
        """Draw the gates. The biases make the heads remember from one token to about 55."""
        nn.init.normal_(self.gate, std=self.gate.shape[-1] ** -0.5)
        set_values(self.gate_bias, torch.linspace(0, LONGEST, len(self.gate_bias)))

    def no_weight_decay(self) -> set[str]:
        """Return both parameters, as the gate is a vector for each head, not a matrix."""
        return {"gate", "gate_bias"}

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, grid: Grid | None = None) -> Tensor:
        """Mix the values: (B, H, N, d), (B, H, M, d), (B, H, M, e) -> (B, H, N, e)."""
        if causal:
            return self.advance(q, k, v, None)[0]
        order = self._order(q, k, grid)
        return self.advance(*(x[..., order, :] for x in (q, k, v)), None)[0][..., order.argsort(), :]

    def weights(self, q: Tensor, k: Tensor, *, causal: bool = False, grid: Grid | None = None) -> Tensor:
        """Compute the share of each token in each state: (B, H, N, d), (B, H, M, d) -> (B, H, N, M)."""
        if causal:
            check_are_last(q, k)
            return gated_weights(self._logits(at_least_float32(k)))[..., k.shape[-2] - q.shape[-2] :, :].to(q.dtype)
        order = self._order(q, k, grid)
        weights = gated_weights(self._logits(at_least_float32(k[..., order, :]))).to(q.dtype)
        return weights[..., order.argsort(), :][..., order.argsort()]

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute the states of new tokens, (B, H, N, e), and the last of them, (B, H, 1, e)."""

        def scan(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            logits = rearrange(self._logits(k), "b h n -> b h n 1")
            states = gated_scan((-logits).sigmoid() * v, logits.sigmoid(), state)
            before = v.new_zeros(*v.shape[:2], 1, v.shape[-1]) if state is None else state
            last = torch.cat([before, states[..., -1:, :]], dim=-2)[..., -1:, :]  # the old one if no token is new
            return states[..., k.shape[-2] - q.shape[-2] :, :], last

        return advance_in_float32(scan, q, k, v)

    def _logits(self, k: Tensor) -> Tensor:
        """Compute the logits of the gates: (B, H, N, d) -> (B, H, N)."""
        bias = rearrange(self.gate_bias, "h -> h 1")
        return einsum(k, self.gate.to(k.dtype), "b h n d, h d -> b h n") + bias.to(k.dtype)

    def _order(self, q: Tensor, k: Tensor, grid: Grid | None) -> Tensor:
        """Return the number of the token at each step: the patches along the path, then the prefix tokens."""
        prefix = prefix_length("RecurrentAttention", q, k, grid)
        patches = rearrange(torch.arange(prefix, q.shape[-2], device=q.device), "(y x) -> y x", y=grid[0])
        if self.path == "snake":
            backwards = rearrange(torch.arange(grid[0], device=q.device) % 2 == 1, "y -> y 1")
            patches = torch.where(backwards, patches.flip(1), patches)
        return torch.cat([rearrange(patches, "y x -> (y x)"), torch.arange(prefix, device=q.device)])
