"""Multi-head attention: projections to heads, a mechanism, and the output projection.

Letters in the einops patterns: b batch, n tokens, h heads, d channels per head, g heads of keys and values, r query
heads that share such a head.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from vit.attention.cache import KeyValueCache, StateCache
from vit.attention.functional import rotate
from vit.attention.mechanisms import MECHANISMS, AttentionName, build
from vit.attention.multihead_checks import (
    check_cache,
    check_cached_context,
    check_context,
    check_state,
    check_takes_angles,
    check_takes_mask,
    check_tied,
    check_tokens,
    check_unprojected,
    check_values,
    check_widths,
    mechanisms_with,
)
from vit.attention.qkv import make_projections, project, project_context, project_to
from vit.attention.qkv_checks import check_are_last
from vit.support.checks import check_switch

for function in ("rearrange", "repeat", "rotate"):
    torch.fx.wrap(function)  # stays one node in an fx trace: it reads sizes, which a trace does not know


class Group(NamedTuple):
    """Packed sequences of one length."""

    sequences: int
    tokens: int  # of each sequence
    grid: tuple[int, int] | None  # rows and columns of the patches that end each sequence


class MultiHeadAttention(nn.Module):
    """Parallel attention heads, each with its own projections of the tokens (Vaswani et al. 2017, sec. 3.2.2).

    ``concat(head_1, ..., head_H) W_proj``, where head i projects the tokens to its own queries, keys and values. The
    three projections are one layer ``qkv``, with timm's name and the order of ``nn.MultiheadAttention.in_proj``. For a
    context of another width there are ``q`` and ``kv``; for keys and values of two widths, ``q``, ``k`` and ``v``.

    >>> import torch
    >>> attention = MultiHeadAttention(48, num_heads=3)
    >>> attention(torch.randn(2, 5, 48)).shape  # self-attention
    torch.Size([2, 5, 48])
    >>> attention(torch.randn(2, 5, 48), torch.randn(2, 7, 48)).shape  # cross-attention: 5 queries, 7 keys
    torch.Size([2, 5, 48])
    >>> attention = MultiHeadAttention(48, num_heads=3, context_dim=24, value_context_dim=12)
    >>> attention(torch.randn(2, 5, 48), torch.randn(2, 7, 24), values=torch.randn(2, 7, 12)).shape  # three sources
    torch.Size([2, 5, 48])

    Args:
        embed_dim: Channels of a token.
        num_heads: Attention heads; must divide ``key_dim`` and ``value_dim``.
        context_dim: Channels of a context token, for cross-attention; None means ``embed_dim``.
        value_context_dim: Channels of a token that gives a value, if keys and values come from different sequences;
            None means ``context_dim``.
        key_dim: Channels of the queries, and of the keys, of all heads together; None means ``embed_dim``.
        value_dim: Channels of the values of all heads together; None means ``embed_dim``.
        out_dim: Channels of an output token; None means ``embed_dim``.
        num_kv_heads: Heads of keys and values, each shared by equally many query heads (Ainslie et al. 2023); 1 is
            multi-query attention, None means ``num_heads``.
        qkv_bias: Whether the projections to queries, keys and values add a bias.
        causal: Whether a token attends only to itself and the tokens before it.
        tie_qkv: Whether queries, keys and values share one projection.
        tie_kv: Whether keys and values share one projection.
        qk_norm: Whether to layer-normalise queries and keys per head, which keeps the logits bounded (Dehghani et al.
            2023).
        norm_eps: Number that these norms add to the variance.
        mechanism: Name of the mechanism, a key of ``MECHANISMS``.
        mechanism_kwargs: Arguments of the mechanism.
        block_index: Number of the encoder block; some mechanisms differ between odd and even blocks.
        grid_size: Rows and columns of patches for ``image_size``; some mechanisms learn weights of that shape.

    Raises:
        ValueError: If widths and numbers of heads do not fit together, or the mechanism or one of its arguments is
            unknown.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        context_dim: int | None = None,
        value_context_dim: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        out_dim: int | None = None,
        num_kv_heads: int | None = None,
        qkv_bias: bool = True,
        causal: bool = False,
        tie_qkv: bool = False,
        tie_kv: bool = False,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
        mechanism: AttentionName = "softmax",
        mechanism_kwargs: dict[str, Any] | None = None,
        block_index: int = 0,
        grid_size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        switches = {"qkv_bias": qkv_bias, "causal": causal, "tie_qkv": tie_qkv, "tie_kv": tie_kv, "qk_norm": qk_norm}
        for name, value in switches.items():
            check_switch(name, value)
        self.embed_dim = embed_dim
        self.context_dim = embed_dim if context_dim is None else context_dim
        self.value_context_dim = self.context_dim if value_context_dim is None else value_context_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.key_dim = embed_dim if key_dim is None else key_dim
        self.value_dim = embed_dim if value_dim is None else value_dim
        out_dim = embed_dim if out_dim is None else out_dim
        self.causal = causal
        self.tie_qkv = tie_qkv
        self.tie_kv = tie_kv
        check_widths(self, "embed_dim" if key_dim is None else "key_dim", self.key_dim)
        check_widths(self, "embed_dim" if value_dim is None else "value_dim", self.value_dim)
        head_dim, value_head_dim = self.key_dim // num_heads, self.value_dim // num_heads
        module = build(
            mechanism,
            MECHANISMS,
            mechanism_kwargs or {},
            num_heads=num_heads,
            embed_dim=embed_dim,
            head_dim=head_dim,
            value_head_dim=value_head_dim,
            block_index=block_index,
            grid_size=grid_size,
        )
        if causal and "causal" not in module.takes:
            raise ValueError(f"attention {mechanism!r} cannot be causal: choose one of {mechanisms_with('causal')}")
        if module.projected:
            check_tied(self)
            make_projections(self, qkv_bias)
        else:
            check_unprojected(self, type(module).__name__, out_dim, qk_norm)
        self.q_norm = nn.LayerNorm(head_dim, eps=norm_eps) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(head_dim, eps=norm_eps) if qk_norm else nn.Identity()
        self.mechanism = module
        self.is_rotary = False  # a model with rotary positions sets it, so that no call forgets the angles
        self.proj = nn.Linear(self.value_dim, out_dim) if module.projected else nn.Identity()

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        values: Tensor | None = None,
        mask: Tensor | None = None,
        cache: KeyValueCache | StateCache | None = None,
        grid: tuple[int, int] | None = None,
        angles: Tensor | None = None,
    ) -> Tensor:
        """Attend from every token to all tokens, or to those of a context: (B, N, D) -> (B, N, out_dim).

        Args:
            x: Tokens that give the queries.
            context: Tokens (B, M, context_dim) that give the keys, and the values as well unless ``values`` are given;
                None means ``x``.
            values: Tokens (B, M, value_context_dim) that give the values, one for each token of the context.
            mask: Mask broadcastable to (B, H, N, M): boolean, True where a query may attend to a key, or floats to add
                to the logits. The values of a query that may attend to no key are zero. A finite number that all keys
                of a query share, such as -1e9, changes nothing under a softmax.
            cache: Without a context, keys and values of the tokens before ``x``; those of ``x`` are appended (causal
                attention only). With a context, its keys and values: the first call computes them, later calls reuse
                them. Mechanisms with a state also take a ``StateCache``, which does not grow.
            grid: Rows and columns of the patches that end the sequence; mechanisms on images need it.
            angles: Rotary angles (N, d / 2) of the positions of ``x`` (see ``rotary_angles``), or (B, N, d / 2), for
                self-attention.

        Raises:
            ValueError: If shapes, dtypes or devices do not fit, or the mechanism lacks what is asked for.
        """
        check_values(self, context, values)
        if isinstance(cache, StateCache):
            check_state(self, context, mask)
            output = self._advance(x, cache, angles)
        else:
            if cache is None:
                q, k, v = self.heads(x, context, values=values, angles=angles)
            elif context is None:
                q, k, v = self._append_to_cache(x, mask, cache, angles)
            else:
                check_context(self, context, angles)
                q, k, v = self._read_cached_context(x, context, values, mask, cache)
            if self.causal:
                check_are_last(q, k)
            inputs = self._inputs(self.mechanism.takes, x, mask, grid)
            output = self.mechanism(q, *self._repeat_kv(k, v), **inputs)
        return self.proj(rearrange(output, "b h n d -> b n (h d)"))

    if TYPE_CHECKING:  # the calls of nn.Module return Any
        __call__: Callable[..., Tensor]

    def _advance(self, x: Tensor, cache: StateCache, angles: Tensor | None) -> Tensor:
        """Compute the output of new tokens from the state of the tokens before, and replace the state."""
        q, k, v = self.heads(x, angles=angles)
        output, state = self.mechanism.advance(q, *self._repeat_kv(k, v), cache.state_before(q))
        cache.replace(state, q.shape[2])
        return output

    def _append_to_cache(
        self, x: Tensor, mask: Tensor | None, cache: KeyValueCache, angles: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of new tokens, and the keys and values of all tokens so far."""
        q, k, v = self.heads(x, angles=angles)
        check_cache(self, cache, q, mask)
        return q, *cache.append(k, v)

    def _read_cached_context(
        self, x: Tensor, context: Tensor, values: Tensor | None, mask: Tensor | None, cache: KeyValueCache
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries of new tokens, and the keys and values of a context, which the first call computes."""
        q = self.queries(x)
        check_cached_context(self, q, context, mask)
        if not cache.length:
            cache.append(*self.keys_and_values(context, values))
        return q, *cache.context(*context.shape[:2])

    def forward_packed(self, x: Tensor, groups: Sequence[Group], angles: Tensor | None = None) -> Tensor:
        """Attend within each of several sequences that lie one after the other: (1, T, D) -> (1, T, out_dim).

        The projections see all T tokens at once, without padding. The mechanism sees each group by itself.

        Args:
            x: The tokens of all sequences, group by group.
            groups: Number and length of the sequences of each group, with T tokens together.
            angles: Rotary angles (T, d / 2).
        """
        q, k, v = self.heads(x, angles=angles)
        lengths = [group.sequences * group.tokens for group in groups]
        parts = zip(groups, *(tensor.split(lengths, dim=2) for tensor in (q, k, v)), x.split(lengths, 1), strict=True)
        outputs = []
        for group, *heads, tokens in parts:
            q, k, v = (rearrange(part, "1 h (b n) d -> b h n d", b=group.sequences) for part in heads)
            tokens = rearrange(tokens, "1 (b n) d -> b n d", b=group.sequences)
            inputs = self._inputs(self.mechanism.takes, tokens, None, group.grid)
            output = self.mechanism(q, *self._repeat_kv(k, v), **inputs)
            outputs.append(rearrange(output, "b h n d -> 1 (b n) (h d)"))
        return self.proj(torch.cat(outputs, dim=1))

    def weights(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        grid: tuple[int, int] | None = None,
        angles: Tensor | None = None,
    ) -> Tensor:
        """Compute the attention weights of each head: (B, N, D) -> (B, H, N, M).

        The arguments are those of ``forward``, without ``values`` and ``cache``.
        """
        if context is None:
            q, k, _ = self.heads(x, angles=angles)
        else:  # weights do not depend on the tokens of the values
            check_context(self, context, angles)
            q, k = self.queries(x), self._split_keys(project_to("k", self, context))
        if self.causal:
            check_are_last(q, k)
        k, _ = self._repeat_kv(k, k)
        return self.mechanism.weights(q, k, **self._inputs(self.mechanism.weights_take, x, mask, grid))

    def heads(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        values: Tensor | None = None,
        angles: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries, keys and values of each head: (B, N, D) -> (B, H, N, d), (B, G, M, d), (B, G, M, e).

        G is ``num_kv_heads``, and M the number of context tokens, or N.
        """
        check_values(self, context, values)
        if context is not None:
            check_context(self, context, angles)
            return self.queries(x), *self.keys_and_values(context, values)
        check_tokens(self, "x", x, self.embed_dim, "embed_dim")
        if self.context_dim != self.embed_dim:
            raise ValueError(
                f"this attention is built for a context of width {self.context_dim} (context_dim) beside tokens of "
                f"width {self.embed_dim}: pass the context"
            )
        if self.is_rotary and angles is None:
            raise ValueError(
                "the queries and keys of this model turn by rotary angles, and none are given: give angles, or "
                "pass the tokens of a VisionTransformer through its encode(tokens)"
            )
        q, k, v = project(self, x)
        q, k, v = self._split_queries(q), self._split_keys(k), self._split_values(v)
        if angles is None:
            return q, k, v
        check_takes_angles(self)
        parts = self.mechanism.rotated_parts
        return rotate(q, angles, parts), rotate(k, angles, parts), v

    def queries(self, x: Tensor) -> Tensor:
        """Compute the queries of each head for cross-attention: (B, N, D) -> (B, H, N, d)."""
        check_tokens(self, "x", x, self.embed_dim, "embed_dim")
        return self._split_queries(project_to("q", self, x))

    def keys_and_values(self, context: Tensor, values: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute keys and values of each head from a context: (B, M, context_dim) -> (B, G, M, d), (B, G, M, e).

        ``values`` are the tokens (B, M, value_context_dim) of the values, if they are not those of the context.
        """
        k, v = project_context(self, context, values)
        return self._split_keys(k), self._split_values(v)

    def _split_queries(self, q: Tensor) -> Tensor:
        # LayerNorm returns float32 under autocast on CUDA; attention takes one dtype for all three.
        return self.q_norm(rearrange(q, "b n (h d) -> b h n d", h=self.num_heads)).to(q.dtype)

    def _split_keys(self, k: Tensor) -> Tensor:
        return self.k_norm(rearrange(k, "b n (g d) -> b g n d", g=self.num_kv_heads)).to(k.dtype)

    def _split_values(self, v: Tensor) -> Tensor:
        return rearrange(v, "b n (g d) -> b g n d", g=self.num_kv_heads)

    def _repeat_kv(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Repeat keys and values for each query head that shares them."""
        if self.num_kv_heads == self.num_heads:
            return k, v
        copies = self.num_heads // self.num_kv_heads
        return repeat(k, "b g n d -> b (g r) n d", r=copies), repeat(v, "b g n d -> b (g r) n d", r=copies)

    def _inputs(
        self, names: frozenset[str], x: Tensor, mask: Tensor | None, grid: tuple[int, int] | None
    ) -> dict[str, Any]:
        """Return the inputs that the mechanism takes by these names, besides queries, keys and values."""
        if mask is not None:
            check_takes_mask(self)
        inputs = {"mask": mask, "causal": self.causal, "grid": grid, "tokens": x}
        return {name: inputs[name] for name in names}
