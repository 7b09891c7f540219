"""Tells whether everything that the logits read of an image enters the first layer as its tokens.

The tokens there are exchanged for those of another image. If the logits are not those of the other image then, a part
of the model goes around them: a branch of convolutions that joins later, or values that were mixed on the way to the
first attention. The experiment of ``vit.capture.mixing`` changes the entering tokens, and does not see such a part.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.capture.head_order import intercept
from vit.capture.logits import result_of
from vit.capture.moved import are_equal, moved_by_images

IMAGES = 5  # that are passed together, or 6 of 5 tokens
MOST_PLACES = 8  # results of functions before the first attention that may hold the tokens


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
    # The first image again: its results differ by rounding alone. Few models have as many heads or channels as images.
    images = torch.cat([pair, *[pair[:1]] * (IMAGES - 2 + (num_tokens == IMAGES))])
    usual = moved_by_images(model, pair)
    for chosen in range(MOST_PLACES):
        exchange = _Exchange(calls[0], len(images), num_tokens, start, chosen)
        with intercept(model, images, exchange.reached), exchange:
            logits = result_of(model(images))
        if are_equal(logits, usual):
            return True
        if not exchange.is_done:
            return chosen == start == 0
    return False


class _Exchange(TorchFunctionMode):
    """Gives all images the tokens of the first, in one result of a function before the first attention.

    Args:
        call: Number of the first attention call that is a layer.
        num_images: Number of images B.
        num_tokens: Number of tokens N.
        start: How many results of functions pass before one may be exchanged.
        chosen: Number of the result among those that hold tokens: (B, N, D), (N, B, D) or (B, rows, columns, D).

    Attributes:
        is_done: Whether there was such a result.
    """

    def __init__(self, call: int, num_images: int, num_tokens: int, start: int, chosen: int) -> None:
        super().__init__()
        self.call, self.num_images, self.num_tokens = call, num_images, num_tokens
        self.passing, self.chosen, self.number = start, chosen, -1
        self.is_over, self.is_done = False, False

    def reached(self, call: int, attn: Tensor) -> Tensor:
        """Stop at the first attention, and leave it as it is."""
        self.is_over |= call == self.call
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
