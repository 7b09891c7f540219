"""Checks by experiment that what an attention adds to its tokens leaves the layer as it is.

A gate around the layer, ``x + g (layer(x) - x)``, a mean with its input, ``0.3 x + 0.7 layer(x)``, or a second linear
layer would change it. Each layer has a copy of an image in which its weights belong to other keys. Behind the
attention, all linear layers give zeros and all norms their input, so that an MLP adds nothing that depends on the copy.
The tokens that leave the layer must then move by the projection of what these weights mix.

Letters in the einops pattern: c image channels, y x rows and columns of pixels, k copies.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from einops import repeat
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.capture.attention_output import SAME, AttentionOutput, WatchProjection
from vit.capture.checks.added import MEASURABLE, by_copy, exchanged, expected_move
from vit.capture.interception.head_order import intercept
from vit.capture.interception.products import MATRIX_PRODUCTS
from vit.capture.parts.trace import Boundary
from vit.capture.tolerance import tolerance

NORMS = (F.layer_norm, torch.layer_norm, F.rms_norm, torch.rms_norm, F.batch_norm, F.group_norm)
LINEAR = (F.linear, F.bilinear, F.conv1d, F.conv2d, torch.conv1d, torch.conv2d, torch.addmm, torch.mm, *MATRIX_PRODUCTS)


@torch.no_grad()
def carried_tokens(
    model: nn.Module, image: Tensor, calls: Sequence[int], leaving: Sequence[Boundary], num_tokens: int
) -> list[Tensor | None]:
    """Return for each layer which tokens leave it with what its attention added, (N,). None is unknown.

    Args:
        model: A ViT in eval mode.
        image: One image, (1, C, H, W).
        calls: Numbers of the attention calls of all tokens that are layers.
        leaving: Where the tokens leave each layer; those of the last layer may leave at no place.
        num_tokens: Number of tokens of an image.
    """
    count = len(calls) + 1
    count += count == num_tokens  # an axis of this size could count either
    leaves = _Leaves(model, calls, count)
    copies = repeat(image, "1 c y x -> k c y x", k=count)
    intercepted = intercept(model, copies, lambda call, attn: leaves.edit(call, attn, intercepted.values))
    with ExitStack() as hooks:
        for layer, place in enumerate(leaving):
            hooks.enter_context(place.seen(partial(leaves.look, layer)))
        hooks.enter_context(leaves.watch)
        hooks.enter_context(leaves)
        hooks.enter_context(intercepted)
        model(copies)
    return leaves.carried


class _Leaves(TorchFunctionMode):
    """Compares the tokens that leave each layer with what its attention says.

    Attributes:
        carried: For each layer which tokens move as expected, (N,); None is unknown.
    """

    def __init__(self, model: nn.Module, calls: Sequence[int], count: int) -> None:
        super().__init__()
        self.model, self.calls, self.count = model, calls, count  # of copies
        self.watch = WatchProjection(with_weights=True, change=lambda tokens: tokens)
        self.carried: list[Tensor | None] = [None] * len(calls)
        self.output: AttentionOutput | None = None  # of the layer that runs
        self.layer, self.normed = -1, False  # whether a norm comes before the first linear layer behind the projection
        self.is_linear = False  # whether that was reached

    def edit(self, call: int, attn: Tensor, values: Tensor) -> Tensor:
        """Change the weights of one copy."""
        self.output, self.normed, self.is_linear = None, False, False
        if call in self.calls:
            self.layer = self.calls.index(call)
            attn = exchanged(attn, values, self.layer)
            self.output = AttentionOutput(attn, values)
            self.watch.follow(self.output)
        return attn

    def look(self, layer: int, tokens: Tensor) -> None:
        """Compare the tokens that leave a layer."""
        if layer != self.layer or self.output is None or self.output.projection is None:
            return
        output, self.output = self.output, None
        copies = by_copy(tokens, output, self.count)
        if copies is None or len(copies[0]) != output.attn.shape[-2] or not copies.isfinite().all():
            return
        expected, moved = expected_move(output, layer), copies[layer + 1] - copies[0]
        if self.normed and not moved.any():
            return  # the MLP has no skip connection, and is left out
        allowed = tolerance(self.model, copies, SAME) * float(expected.abs().max())
        if float(expected.abs().max()) > MEASURABLE * torch.finfo(copies.dtype).eps * float(copies[0].abs().max()):
            self.carried[layer] = ((moved - expected).abs() <= allowed).all(dim=1)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function. Behind a projection, a linear layer gives zeros, and a norm its input."""
        kwargs = kwargs or {}
        is_behind = self.output is not None and self.output.projection is not None
        self.normed |= is_behind and func in NORMS and not self.is_linear
        self.is_linear |= is_behind and func in LINEAR
        if is_behind and func in NORMS:
            return args[0] if args else kwargs["input"]
        result = func(*args, **kwargs)
        return torch.zeros_like(result) if is_behind and func in LINEAR else result
