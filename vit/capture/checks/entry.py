"""Tells whether everything that the logits read of an image enters a layer as its tokens.

The tokens there are exchanged for those of another image. If the logits are not those of the other image then, a part
of the model goes around them. Around the first layer, this is a branch of convolutions that joins later, or values that
were mixed on the way to the first attention. Around the last layer, the logits read tokens of an earlier one. The
experiment of ``vit.capture.checks.mixing`` changes the entering tokens, and does not see such a part.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.capture.attention_output import logits_with_sum
from vit.capture.experiments.moved import are_equal, moved_by_images
from vit.capture.interception.head_order import intercept
from vit.capture.parts.last_tokens import fixes_logits
from vit.capture.parts.logits import result_of
from vit.capture.parts.token_places import Boundary

IMAGES = 5  # that are passed together, or 6 of 5 tokens
MOST_PLACES = 8  # results of functions before the first attention that may hold the tokens
MOST_BETWEEN = 24  # the same between the last two


@torch.no_grad()
def enters_as_tokens(model: nn.Module, pair: Tensor, calls: Sequence[int], num_tokens: int, start: int) -> bool:
    """Return whether two images (2, C, H, W) have equal logits if both get the entering tokens of the first.

    The answer is also yes if no function returns tokens. It is no if tokens were mixed linearly before, as in a patch
    embedding, and none follow.

    Args:
        model: A ViT in eval mode.
        pair: The images.
        calls: Numbers of the attention calls that are layers.
        num_tokens: Number N of tokens.
        start: What ``check_unmixed`` returned.
    """
    images = _two_and_copies(pair, num_tokens)
    usual = moved_by_images(model, pair)
    for chosen in range(MOST_PLACES):
        exchange = _Exchange(None, calls[0], len(images), num_tokens, start, chosen)
        logits = _exchanged(model, images, exchange)
        if are_equal(logits, usual):
            return True
        if not exchange.is_done:
            return chosen == start == 0
    return False


@torch.no_grad()
def passes_last_layer(
    model: nn.Module, pair: Tensor, calls: Sequence[int], num_tokens: int, layers: Sequence[Boundary]
) -> bool:
    """Return whether the logits of two images (2, C, H, W) read no tokens of an earlier layer around the last one.

    They are equal if both images get the tokens of the first before the last layer, or where its attention is added to
    them: tokens of an earlier layer may be added there by a longer skip connection. The answer is also yes if there is
    one layer, or no function returns tokens between the last two attentions.

    Args:
        model: A ViT in eval mode.
        pair: The images.
        calls: Numbers of the attention calls of all tokens that are layers.
        num_tokens: Number N of tokens.
        layers: The input of each layer, if modules take it.
    """
    usual = moved_by_images(model, pair)
    if len(calls) < 2 or (layers and fixes_logits(model, layers[-1], pair, usual)):
        return True
    images = _two_and_copies(pair, num_tokens)
    logits = logits_with_sum(model, images, calls[-1], partial(_of_first, len(images)))
    if logits is not None and are_equal(logits, usual):
        return True
    for chosen in range(MOST_BETWEEN):
        exchange = _Exchange(*calls[-2:], len(images), num_tokens, 0, chosen)
        if are_equal(_exchanged(model, images, exchange), usual):
            return True
        if not exchange.is_done:
            return chosen == 0
    return False


def _two_and_copies(pair: Tensor, num_tokens: int) -> Tensor:
    """Return two images and copies of the first, whose results differ by rounding alone: (2, C, H, W) -> (B, C, H, W).

    Few models have as many heads or channels as images.
    """
    return torch.cat([pair, *[pair[:1]] * (IMAGES - 2 + (num_tokens == IMAGES))])


def _of_first(num_images: int, tokens: Tensor) -> Tensor:
    """Return the tokens of the first image for all: (B, N, D) or (N, B, D)."""
    axis = 0 if len(tokens) == num_images else 1
    return tokens.narrow(axis, 0, 1).expand_as(tokens).clone()


def _exchanged(model: nn.Module, images: Tensor, exchange: "_Exchange") -> Tensor:
    """Return the logits of images within an exchange."""
    with intercept(model, images, exchange.reached), exchange:
        return result_of(model(images))


class _Exchange(TorchFunctionMode):
    """Gives all images the tokens of the first, in one result of a function before an attention.

    Args:
        after: Number of the attention call after which results are counted; None counts from the start.
        call: Number of the attention call before which they are.
        num_images: Number of images B.
        num_tokens: Number of tokens N.
        start: How many results of functions pass before one may be exchanged.
        chosen: Number of the result among those that hold tokens: (B, N, D), (N, B, D) or (B, rows, columns, D).

    Attributes:
        is_done: Whether there was such a result.
    """

    def __init__(self, after: int | None, call: int, num_images: int, num_tokens: int, start: int, chosen: int) -> None:
        super().__init__()
        self.after, self.call, self.num_images, self.num_tokens = after, call, num_images, num_tokens
        self.passing, self.chosen, self.number = start, chosen, -1
        self.is_over, self.is_done = after is not None, False

    def reached(self, call: int, attn: Tensor) -> Tensor:
        """Begin and stop at the two attentions, and leave them as they are."""
        if call in (self.after, self.call):
            self.is_over = call == self.call
        return attn

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and exchange the tokens that it returns if it is the chosen one."""
        result = func(*args, **(kwargs or {}))
        self.passing -= 1
        axis = None if self.is_over or self.passing >= 0 else self._axis_of_images(result)
        if axis is None:
            return result
        self.number += 1
        if self.number != self.chosen:
            return result
        self.is_done = True
        return result.narrow(axis, 0, 1).expand_as(result).clone()

    def _axis_of_images(self, result: Any) -> int | None:
        """Return which axis of a result counts images, or None if it holds no tokens."""
        if not isinstance(result, Tensor) or not result.is_floating_point() or result.ndim not in (3, 4):
            return None
        first, second, *others = result.shape
        if result.ndim == 4:
            is_grid = second > 1 and second * others[0] == self.num_tokens  # one head is no row of patches
            return 0 if first == self.num_images and is_grid else None
        orders = ((self.num_images, self.num_tokens), (self.num_tokens, self.num_images))
        return orders.index((first, second)) if (first, second) in orders else None
