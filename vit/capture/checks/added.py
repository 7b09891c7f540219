"""Checks by experiment that an attention adds to its tokens what its weights, values and projection say.

A function after the sum with the skip connection may change that: ``0.7 x + 0.3 (x + y)``, a second sum, a gate. The
weights of each layer are exchanged in one copy of an image. The first tokens that move after the sum must move by the
projection of what these weights mix.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.capture.attention_output import are_same_tokens
from vit.capture.experiments.followed_attention import ExchangedWeights

LITTLE = 1e-3  # of what is expected: tokens that move less have not moved
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
    first_moves = _FirstMoves(model, calls, num_tokens)
    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_pre_hook(first_moves.enter, with_kwargs=True))
        first_moves.exchange.run(model, image, first_moves)
    return first_moves.agree


class _FirstMoves(TorchFunctionMode):
    """Compares the first tokens that move after each attention with what its output says.

    Attributes:
        agree: For each layer whether the tokens move as expected; None is unknown.
    """

    def __init__(self, model: nn.Module, calls: Sequence[int], num_tokens: int) -> None:
        super().__init__()
        self.model = model
        self.exchange = ExchangedWeights(calls, num_tokens, self.begin, self.begin_anew)
        self.agree: list[bool | None] = [None] * len(calls)
        self.is_seen = False  # whether the first tokens of the layer that move were seen
        self.alone: Tensor | None = None  # the output of the attention, if it was added to tokens

    def begin(self) -> None:
        """Forget the layer before."""
        self.is_seen, self.alone = False, None

    def begin_anew(self, tokens: Tensor) -> Tensor:
        """Forget what was taken before the sum with the skip connection, which does not move: an MLP does."""
        other, summed = map(self.exchange.by_image, (self.exchange.output.added_to, tokens))
        if other is None or not self.moved(other).any():
            self.agree[self.exchange.layer], self.is_seen = None, False
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
        if not self.exchange.is_projected or self.is_seen:
            return
        copies = self.exchange.by_image(tokens)
        if copies is None or not copies.isfinite().all():
            return  # the changed weights may leave a query without keys
        if self.alone is not None and are_same_tokens(copies, self.alone):
            return  # an adapter may take the output of the attention, and be added to the sum
        expected, moved = self.exchange.expected(), self.moved(copies)
        if not moved.any():
            return
        self.is_seen = True
        allowed = self.exchange.allowed(self.model, copies)
        if allowed is not None:
            means = [expected[first:].mean(dim=0, keepdim=True) for first in range(min(MOST_PREFIX, len(expected)))]
            may_be = [expected] if len(moved) == len(expected) else [*expected.split(1), *means]
            self.agree[self.exchange.layer] = any(bool(((moved - each).abs() <= allowed).all()) for each in may_be)

    def moved(self, copies: Tensor) -> Tensor:
        """Return how the tokens of the changed copy moved, (N, C); all zero if by a little of what is expected."""
        expected = self.exchange.expected()
        moved = (copies[self.exchange.layer + 1] - copies[0]).to(expected)
        return moved * (moved.abs().max() > LITTLE * expected.abs().max())
