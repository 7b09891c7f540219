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

from vit.capture.attention_output import SAME, AttentionOutput, WatchProjection
from vit.capture.interception.head_order import intercept
from vit.capture.tolerance import tolerance

STRENGTH = 100.0  # of the changed weights, since LayerScale may begin at 1e-5
LITTLE = 1e-3  # of what is expected: tokens that move less have not moved
MEASURABLE = 1e4  # units of rounding of the largest token, which what is expected must exceed
TAKES_TOKENS = (F.linear, F.layer_norm, F.rms_norm, torch.matmul, Tensor.matmul, Tensor.__matmul__)


@torch.no_grad()
def layer_that_adds_otherwise(model: nn.Module, image: Tensor, calls: Sequence[int]) -> int | None:
    """Return the first layer whose tokens move otherwise than its attention says, or None if there is none.

    Layers after which no module and no norm takes all tokens are not looked at.

    Args:
        model: A ViT in eval mode.
        image: One image, (1, C, H, W).
        calls: Numbers of the attention calls of all tokens that are layers.
    """
    first_moves = _FirstMoves(model, calls)
    copies = repeat(image, "1 c y x -> k c y x", k=len(calls) + 1)
    intercepted = intercept(model, copies, lambda call, attn: first_moves.edit(call, attn, intercepted.values))
    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_pre_hook(first_moves.enter, with_kwargs=True))
        hooks.enter_context(first_moves.watch)
        hooks.enter_context(first_moves)
        hooks.enter_context(intercepted)
        model(copies)
    return next((layer for layer, agree in enumerate(first_moves.agree) if agree is False), None)


class _FirstMoves(TorchFunctionMode):
    """Compares the first tokens that move after each attention with what its output says.

    Attributes:
        agree: For each layer whether the tokens move as expected; None if none were seen, or rounding hides it.
    """

    def __init__(self, model: nn.Module, calls: Sequence[int]) -> None:
        super().__init__()
        self.model, self.calls = model, calls
        self.watch = WatchProjection(with_weights=True, change=self.begin_anew)
        self.agree: list[bool | None] = [None] * len(calls)
        self.output: AttentionOutput | None = None  # of the last layer
        self.layer, self.is_seen = -1, False  # whether its first tokens that move were seen

    def edit(self, call: int, attn: Tensor, values: Tensor) -> Tensor:
        """Change the weights of one copy."""
        self.output, self.is_seen = None, False
        if call in self.calls:
            self.layer = self.calls.index(call)
            attn = attn.expand(-1, max(attn.shape[1], values.shape[1]), -1, -1).clone()
            attn[self.layer + 1] = STRENGTH * attn[self.layer + 1].roll(1, dims=-1)
            self.output = AttentionOutput(attn, values)
            self.watch.follow(self.output)
        return attn

    def begin_anew(self, tokens: Tensor) -> Tensor:
        """Forget what was taken before the sum with the skip connection."""
        self.agree[self.layer], self.is_seen = None, False
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
        """Compare tokens (K, N, C), (N, K, C) or (K * N, C), if they are the first that move."""
        if self.output is None or self.output.projection is None or self.is_seen:
            return
        count, num_tokens, channels = len(self.calls) + 1, self.output.attn.shape[-2], len(self.output.projection)
        if not isinstance(tokens, Tensor) or tokens.ndim < 2 or tokens.shape[-1] != channels:
            return
        if tokens.shape[:-1] == (count * num_tokens,):
            tokens = rearrange(tokens, "(k n) c -> k n c", k=count)
        if tokens.shape[:-1] == (num_tokens, count) and count != num_tokens:
            tokens = rearrange(tokens, "n k c -> k n c")
        if tokens.shape[:-1] != (count, num_tokens):
            return
        expected = self.expected()
        moved, largest = (tokens[self.layer + 1] - tokens[0]).to(expected), float(expected.abs().max())
        if float(moved.abs().max()) <= LITTLE * largest:
            return
        self.is_seen = True
        if largest > MEASURABLE * torch.finfo(tokens.dtype).eps * float(tokens[0].abs().max()):
            allowed = tolerance(self.model, tokens, SAME) * largest
            self.agree[self.layer] = bool(((moved - expected).abs() <= allowed).all())

    def expected(self) -> Tensor:
        """Return how the tokens of the changed copy should move, (N, C)."""
        attn, values, projection = self.output.attn, self.output.values, self.output.projection
        changed = (attn[self.layer + 1] - attn[0]).to(values)
        mixed = einsum(changed, values[0], "h n m, h m d -> h n d")
        return rearrange(mixed, "h n d -> n (h d)").to(projection) @ projection.mT
