"""Checks that what an attention adds to its tokens is carried to the next layer as it is.

More may be added to the tokens, and a norm may follow. A gate around the layer, ``x + g (layer(x) - x)``, or a mean
with its input, ``0.3 x + 0.7 layer(x)``, would change what the attention has added.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.capture.attention_output import AttentionOutput, WatchProjection, are_same_tokens
from vit.capture.interception.arithmetic import DIFFERENCES, SUMS, arithmetic_name
from vit.capture.interception.head_order import intercept
from vit.capture.parts.trace import Boundary

NORMS = (F.layer_norm, torch.layer_norm, F.rms_norm, torch.rms_norm, F.batch_norm, torch.batch_norm)


@torch.no_grad()
def carries(model: nn.Module, images: Tensor, calls: Sequence[int], leaving: Sequence[Boundary]) -> list[bool]:
    """Return for each layer whether its attention output, and what is added to it, leave the layer unchanged.

    The answer is also yes if no change is seen, as if the tokens are in another arrangement.

    Args:
        model: A ViT in eval mode.
        images: Images as the model takes them, (B, C, H, W).
        calls: Numbers of the attention calls of all tokens that are layers.
        leaving: Where the tokens leave each layer, a place for each.
    """
    stream = _Sums()
    found = [True] * len(calls)

    def edit(call: int, attn: Tensor) -> Tensor:
        if call in calls:
            stream.begin(AttentionOutput(attn, intercepted.values))
        return attn

    def leave(layer: int, tokens: Tensor) -> None:
        found[layer] = not stream.is_changed or any(are_same_tokens(each, tokens) for each in stream.sums)

    intercepted = intercept(model, images, edit)
    with ExitStack() as hooks:
        for layer, place in enumerate(leaving):
            hooks.enter_context(place.seen(partial(leave, layer)))
        hooks.enter_context(stream)
        hooks.enter_context(intercepted)
        model(images)
    return found


class _Sums(WatchProjection):
    """Follows the output of an attention through all that is added to it, and through norms.

    Attributes:
        sums: The output, its sums with other tokens, and what norms make of these.
        is_changed: Whether another function has made tokens of one of them.
    """

    def __init__(self) -> None:
        super().__init__(with_weights=True, change=lambda tokens: tokens)
        self.sums: list[Tensor] = []
        self.is_changed = False

    def begin(self, output: AttentionOutput) -> None:
        """Follow the output of another attention."""
        self.sums, self.is_changed = [], False
        self.follow(output)

    def _keep(self, tensor: Tensor) -> None:
        super()._keep(tensor)
        self.sums = [tensor.clone()]  # to which may be added in place

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and follow the sums to its result."""
        is_taken = any(map(self._is_sum, args[:2]))
        result = super().__torch_function__(func, types, args, kwargs)
        if is_taken and isinstance(result, Tensor) and result.shape == self.sums[0].shape:
            if arithmetic_name(func)[0] in (*SUMS, *DIFFERENCES) or func in NORMS:
                self.sums.append(result.clone())
            elif not self._is_sum(result):
                self.is_changed = True
        return result

    def _is_sum(self, argument: Any) -> bool:
        """Return whether an argument is one of the sums."""
        are_alike = isinstance(argument, Tensor) and self.sums and argument.shape == self.sums[0].shape
        return are_alike and any(torch.equal(argument, each) for each in self.sums)
