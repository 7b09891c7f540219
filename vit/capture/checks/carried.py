"""Checks by experiment that what an attention adds to its tokens leaves the layer as it is.

A gate around the layer, ``x + g (layer(x) - x)``, a mean with its input, ``0.3 x + 0.7 layer(x)``, or a second linear
layer would change it. The weights of each layer are exchanged in one copy of an image. Behind the projection, all
linear layers give zeros and all norms their input, so that an MLP adds nothing that depends on the copy. The tokens
that leave the layer must then move by the projection of what these weights mix.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.capture.experiments.exchanged_weights import ExchangedWeights
from vit.capture.interception.products import MATRIX_PRODUCTS
from vit.capture.parts.token_places import Boundary

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
    ends = _Ends(model, calls, num_tokens)
    with ExitStack() as looks:
        for layer, place in enumerate(leaving):
            looks.enter_context(place.seen(partial(ends.leave, layer)))
        ends.exchange.run(model, image, ends)
    return ends.carried


class _Ends(TorchFunctionMode):
    """Compares the tokens that leave each layer with what its attention says.

    Attributes:
        carried: For each layer which tokens move as expected, (N,); None is unknown.
    """

    def __init__(self, model: nn.Module, calls: Sequence[int], num_tokens: int) -> None:
        super().__init__()
        self.model = model
        self.exchange = ExchangedWeights(calls, num_tokens, self.begin)
        self.carried: list[Tensor | None] = [None] * len(calls)
        self.first: Callable[..., Any] | None = None  # norm or linear function behind the projection

    def begin(self) -> None:
        """Forget the layer before."""
        self.first = None

    def leave(self, layer: int, tokens: Tensor) -> None:
        """Compare the tokens that leave a layer, once."""
        if layer == self.exchange.layer and self.exchange.is_projected:
            with torch._C.DisableTorchFunction():
                self.carried[layer] = self.moved_as_expected(tokens)
            self.exchange.output = None

    def moved_as_expected(self, tokens: Tensor) -> Tensor | None:
        """Return which tokens move as expected, (N,); None if it is unknown."""
        copies, expected = self.exchange.by_copy(tokens), self.exchange.expected()
        if copies is None or len(copies[0]) != len(expected) or not copies.isfinite().all():
            return None
        moved = copies[self.exchange.layer + 1] - copies[0]
        if self.first in NORMS and not moved.any():
            return None  # the MLP behind a norm has no skip connection, and is left out
        allowed = self.exchange.allowed(self.model, copies)
        return None if allowed is None else ((moved - expected).abs() <= allowed).all(dim=1)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function. Behind a projection, a linear layer gives zeros, and a norm its input."""
        kwargs = kwargs or {}
        if not self.exchange.is_projected or func not in (*NORMS, *LINEAR):
            return func(*args, **kwargs)
        self.first = self.first or func
        if func in NORMS:
            return args[0] if args else kwargs["input"]
        return torch.zeros_like(func(*args, **kwargs))
