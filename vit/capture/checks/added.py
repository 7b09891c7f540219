"""Checks by experiment that an attention adds to its tokens what its weights, values and projection say.

A function after the sum with the skip connection may change that: ``0.7 x + 0.3 (x + y)``, a second sum, a gate. Each
layer has a copy of an image in which its weights belong to other keys. The first tokens that move after the sum must
move by the projection of what these weights mix.

Letters in the einops patterns: k copies of an image, h heads, n tokens, m keys, d channels per head, c channels of a
token.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.capture.attention_output import SAME, AttentionOutput, WatchProjection, are_same_tokens
from vit.capture.interception.head_order import intercept
from vit.capture.tolerance import tolerance

STRENGTH = 100.0  # of the changed weights, since LayerScale may begin at 1e-5
LITTLE = 1e-3  # of what is expected: tokens that move less have not moved
MEASURABLE = 1e4  # units of rounding of the largest token, which what is expected must exceed
MOST_PREFIX = 6  # tokens in front of those whose mean may be taken
TAKES_TOKENS = (F.linear, F.layer_norm, F.rms_norm, torch.matmul, Tensor.matmul, Tensor.__matmul__)


@torch.no_grad()
def tokens_agree(model: nn.Module, image: Tensor, calls: Sequence[int], num_tokens: int) -> list[bool | None]:
    """Return for each layer whether its tokens move as its attention says. None is unknown: rounding hides it.

    Unknown are also layers after which no module, norm or matrix takes tokens.

    Args:
        model: A ViT in eval mode.
        image: One image, (1, C, H, W).
        calls: Numbers of the attention calls of all tokens that are layers.
        num_tokens: Number of tokens of an image.
    """
    count = len(calls) + 1
    count += count == num_tokens  # an axis of this size could count either
    first_moves = _FirstMoves(model, calls, count)
    copies = repeat(image, "1 c y x -> k c y x", k=count)
    intercepted = intercept(model, copies, lambda call, attn: first_moves.edit(call, attn, intercepted.values))
    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_pre_hook(first_moves.enter, with_kwargs=True))
        hooks.enter_context(first_moves.watch)
        hooks.enter_context(first_moves)
        hooks.enter_context(intercepted)
        model(copies)
    return first_moves.agree


class _FirstMoves(TorchFunctionMode):
    """Compares the first tokens that move after each attention with what its output says.

    Attributes:
        agree: For each layer whether the tokens move as expected; None is unknown.
    """

    def __init__(self, model: nn.Module, calls: Sequence[int], count: int) -> None:
        super().__init__()
        self.model, self.calls, self.count = model, calls, count  # of copies
        self.watch = WatchProjection(with_weights=True, change=self.begin_anew)
        self.agree: list[bool | None] = [None] * len(calls)
        self.output: AttentionOutput | None = None  # of the last layer
        self.layer, self.is_seen = -1, False  # whether its first tokens that move were seen
        self.alone: Tensor | None = None  # the output of the attention, if it was added to tokens

    def edit(self, call: int, attn: Tensor, values: Tensor) -> Tensor:
        """Change the weights of one copy."""
        self.output, self.is_seen, self.alone = None, False, None
        if call in self.calls:
            self.layer = self.calls.index(call)
            attn = exchanged(attn, values, self.layer)
            self.output = AttentionOutput(attn, values)
            self.watch.follow(self.output)
        return attn

    def begin_anew(self, tokens: Tensor) -> Tensor:
        """Forget what was taken before the sum with the skip connection, which does not move: an MLP does."""
        other, summed = (by_copy(each, self.output, self.count) for each in (self.output.added_to, tokens))
        if other is None or not self.moved(other).any():
            self.agree[self.layer], self.is_seen = None, False
            self.alone = None if other is None or summed is None else summed - other
        return tokens

    def enter(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look at what enters a module."""
        with torch._C.DisableTorchFunction():
            self.look(args[0] if args else next(iter(kwargs.values()), None))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look at the tokens that a function takes, and call it."""
        kwargs = kwargs or {}
        if func in TAKES_TOKENS:
            self.look(args[0] if args else kwargs.get("input"))
        return func(*args, **kwargs)

    def look(self, tokens: Any) -> None:
        """Compare tokens (K, N, C), (N, K, C) or (K * N, C), or one token (K, C), if they are the first that move."""
        if self.output is None or self.output.projection is None or self.is_seen:
            return
        tokens = by_copy(tokens, self.output, self.count)
        if tokens is None or not tokens.isfinite().all():
            return  # the changed weights may leave a query without keys
        if self.alone is not None and are_same_tokens(tokens, self.alone):
            return  # an adapter may take the output of the attention, and be added to the sum
        expected, moved = expected_move(self.output, self.layer), self.moved(tokens)
        if not moved.any():
            return
        self.is_seen, num_tokens, largest = True, len(expected), float(expected.abs().max())
        if largest > MEASURABLE * torch.finfo(tokens.dtype).eps * float(tokens[0].abs().max()):
            allowed = tolerance(self.model, tokens, SAME) * largest
            means = [expected[first:].mean(dim=0, keepdim=True) for first in range(min(MOST_PREFIX, num_tokens))]
            may_be = [expected] if len(moved) == num_tokens else [*expected.split(1), *means]
            self.agree[self.layer] = any(bool(((moved - each).abs() <= allowed).all()) for each in may_be)

    def moved(self, tokens: Tensor) -> Tensor:
        """Return how the tokens of the changed copy moved, (N, C); all zero if by a little of what is expected."""
        expected = expected_move(self.output, self.layer)
        moved = (tokens[self.layer + 1] - tokens[0]).to(expected)
        return moved * (moved.abs().max() > LITTLE * expected.abs().max())


def exchanged(attn: Tensor, values: Tensor, layer: int) -> Tensor:
    """Return weights of copies, (K, H, N, M), of which those of copy ``layer + 1`` belong to other keys."""
    attn = attn.expand(-1, max(attn.shape[1], values.shape[1]), -1, -1).clone()
    attn[layer + 1] = STRENGTH * attn[layer + 1].roll(1, dims=-1)
    return attn


def expected_move(output: AttentionOutput, layer: int) -> Tensor:
    """Return how the tokens of the copy with exchanged weights should move, (N, C)."""
    attn, values, projection = output.attn, output.values, output.projection
    changed = (attn[layer + 1] - attn[0]).to(values)
    mixed = einsum(changed, values[0], "h n m, h m d -> h n d")
    return rearrange(mixed, "h n d -> n (h d)").to(projection) @ projection.mT


def by_copy(tokens: Any, output: AttentionOutput, count: int) -> Tensor | None:
    """Return tokens of copies as (K, N, C), one token as (K, 1, C), or None for anything else."""
    num_tokens, channels = output.attn.shape[-2], len(output.projection)
    if not isinstance(tokens, Tensor) or tokens.ndim < 2 or tokens.shape[-1] != channels:
        return None
    if tokens.shape[:-1] == (count * num_tokens,):
        return rearrange(tokens, "(k n) c -> k n c", k=count)
    if tokens.shape[:-1] == (num_tokens, count):
        return rearrange(tokens, "n k c -> k n c")
    if tokens.shape[:-1] == (count,):
        return rearrange(tokens, "k c -> k 1 c")
    return tokens if tokens.shape[:-1] in ((count, num_tokens), (count, 1)) else None
