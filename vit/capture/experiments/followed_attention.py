"""Follows the output of each attention that is a layer, while images pass a model.

``ExchangedWeights`` passes copies of an image, one for each layer, in which its weights belong to other keys.

Letters in the einops patterns: k copies of an image, c image channels, y x rows and columns of pixels, h heads, n
tokens, m keys, d channels per head; of tokens, c are their channels.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from einops import einsum, rearrange, repeat
from torch import Tensor, nn

from vit.capture.attention_output import AttentionOutput, WatchProjection, same_share
from vit.capture.interception.head_order import intercept
from vit.capture.tolerance import tolerance

STRENGTH = 100.0  # of the changed weights, since LayerScale may begin at 1e-5
MEASURABLE = 1e4  # units of rounding of the largest token, which what is expected must exceed


class FollowedAttention:
    """The attention that runs, and what is known of its output.

    Args:
        calls: Numbers of the attention calls of all tokens that are layers.
        begin: Called at each attention.
        change: Replaces the sum of the output of an attention and the tokens that it is added to.

    Attributes:
        count: Number K of images.
        layer: The last layer whose attention was reached.
        output: Its output, or None behind an attention that is no layer.
    """

    def __init__(
        self,
        calls: Sequence[int],
        begin: Callable[[], None] = lambda: None,
        change: Callable[[Tensor], Tensor] = lambda tokens: tokens,
    ) -> None:
        self.calls, self.begin = calls, begin
        self.watch = WatchProjection(with_weights=True, change=change)
        self.count, self.layer = 0, -1
        self.output: AttentionOutput | None = None

    def run(self, model: nn.Module, images: Tensor, *around: AbstractContextManager[Any]) -> None:
        """Pass images (K, C, H, W) through a model in eval mode, within contexts."""
        self.count = len(images)
        intercepted = intercept(model, images, lambda call, attn: self._follow(call, attn, intercepted.values))
        with ExitStack() as contexts:
            for context in (self.watch, *around, intercepted):
                contexts.enter_context(context)
            model(images)

    def _follow(self, call: int, attn: Tensor, values: Tensor) -> Tensor:
        self.begin()
        self.output = None
        if call in self.calls:
            self.layer = self.calls.index(call)
            attn = self.weights(attn.expand(-1, max(attn.shape[1], values.shape[1]), -1, -1))
            self.output = AttentionOutput(attn, values)
            self.watch.follow(self.output)
        return attn

    def weights(self, attn: Tensor) -> Tensor:
        """Return the weights (K, H, N, M) that the layer gets."""
        return attn

    @property
    def is_projected(self) -> bool:
        """Whether the output of a layer has passed its projection."""
        return self.output is not None and self.output.projection is not None

    def by_image(self, tokens: Any) -> Tensor | None:
        """Return tokens as (K, N, C), one token as (K, 1, C), or None for anything else."""
        num_tokens, channels = self.output.attn.shape[-2], len(self.output.projection)
        if not isinstance(tokens, Tensor) or tokens.ndim < 2 or tokens.shape[-1] != channels:
            return None
        if tokens.shape[:-1] == (self.count * num_tokens,):
            return rearrange(tokens, "(k n) c -> k n c", k=self.count)
        if tokens.shape[:-1] == (num_tokens, self.count):
            return rearrange(tokens, "n k c -> k n c")
        if tokens.shape[:-1] == (self.count,):
            return rearrange(tokens, "k c -> k 1 c")
        return tokens if tokens.shape[:-1] in ((self.count, num_tokens), (self.count, 1)) else None


class ExchangedWeights(FollowedAttention):
    """Copies of an image. Copy 0 is unchanged, and layer i has other weights in copy i + 1.

    Args:
        calls: Numbers of the attention calls of all tokens that are layers.
        num_tokens: Number of tokens of an image.
        further: ``begin`` and ``change`` of ``FollowedAttention``.
    """

    def __init__(self, calls: Sequence[int], num_tokens: int, *further: Callable[..., Any]) -> None:
        super().__init__(calls, *further)
        self.num_tokens = num_tokens

    def run(self, model: nn.Module, image: Tensor, *around: AbstractContextManager[Any]) -> None:
        """Pass copies of an image (1, C, H, W) through a model in eval mode, within contexts."""
        count = len(self.calls) + 1
        count += count == self.num_tokens  # an axis of this size could count either
        super().run(model, repeat(image, "1 c y x -> k c y x", k=count), *around)

    def weights(self, attn: Tensor) -> Tensor:
        """Return the weights of all copies, of which those of one belong to other keys."""
        attn = attn.clone()
        attn[self.layer + 1] = STRENGTH * attn[self.layer + 1].roll(1, dims=-1)
        return attn

    def expected(self) -> Tensor:
        """Return how the tokens of the changed copy should move, (N, C)."""
        attn, values, projection = self.output.attn, self.output.values, self.output.projection
        changed = (attn[self.layer + 1] - attn[0]).to(values)
        mixed = einsum(changed, values[0], "h n m, h m d -> h n d")
        return rearrange(mixed, "h n d -> n (h d)").to(projection) @ projection.mT

    def allowed(self, model: nn.Module, copies: Tensor) -> float | None:
        """Return how far tokens (K, N, C) may be from what is expected; None if rounding may hide it."""
        largest = float(self.expected().abs().max())
        is_measurable = largest > MEASURABLE * torch.finfo(copies.dtype).eps * float(copies[0].abs().max())
        return tolerance(model, copies, same_share(copies)) * largest if is_measurable else None
