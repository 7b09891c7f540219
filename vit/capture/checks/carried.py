"""Checks by experiment that what an attention adds to its tokens leaves the layer as it is.

A gate around the layer, ``x + g (layer(x) - x)``, a mean with its input, ``0.3 x + 0.7 layer(x)``, or a second linear
layer would change it. The weights of each layer are exchanged in one copy of an image. Behind the projection, all
linear layers give zeros and all norms their input, so that an MLP adds nothing that depends on the copy. The tokens
that leave the layer must then move by the projection of what these weights mix.

A gate may work for some images alone. Without MLPs, what a layer adds to its tokens beside the output of its attention
is then another for some images.

Letters in the einops patterns: k images, h heads, n queries, m keys, d channels per head, c channels of a token.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.capture.experiments.followed_attention import ExchangedWeights, FollowedAttention
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
    carried: list[Tensor | None] = [None] * len(calls)
    exchange = ExchangedWeights(calls, num_tokens)

    def look(tokens: Tensor) -> None:
        carried[exchange.layer] = _moved_as_expected(model, exchange, tokens, without_mlps.first in NORMS)

    without_mlps = _WithoutMLPs(exchange, leaving, look)
    without_mlps.run(model, image)
    return carried


@torch.no_grad()
def image_most_unlike_first(
    model: nn.Module, images: Tensor, calls: Sequence[int], leaving: Sequence[Boundary], num_tokens: int
) -> int:
    """Return the image for which a layer does something else with the output of its attention than for the first.

    If there are several, it is the one that differs most; if there is none, any.

    Args:
        model: A ViT in eval mode.
        images: Images, (B, C, H, W).
        calls: Numbers of the attention calls of all tokens that are layers.
        leaving: As in ``carried_tokens``.
        num_tokens: Number of tokens of an image.
    """
    count = len(images)
    if count == num_tokens:
        images = torch.cat([images, images[:1]])  # an axis of this size could count either
    unlike = torch.zeros(len(images))
    followed = FollowedAttention(calls)

    def look(tokens: Tensor) -> None:
        torch.maximum(unlike, _added_unlike_first(followed, tokens).to(unlike), out=unlike)

    _WithoutMLPs(followed, leaving, look).run(model, images)
    return int(unlike[:count].argmax())


class _WithoutMLPs(TorchFunctionMode):
    """Behind the projection of an attention, linear layers give zeros and norms their input, until the tokens leave.

    Args:
        followed: The attention that runs.
        leaving: As in ``carried_tokens``.
        look: Called with the tokens (K, N, C) that leave the layer.

    Attributes:
        first: The norm or linear function that came first.
    """

    def __init__(
        self, followed: FollowedAttention, leaving: Sequence[Boundary], look: Callable[[Tensor], None]
    ) -> None:
        super().__init__()
        self.followed, self.leaving, self.look = followed, leaving, look
        self.first: Callable[..., Any] | None = None
        followed.begin = self.begin

    def run(self, model: nn.Module, images: Tensor) -> None:
        """Pass images (B, C, H, W), or copies of one, through a model in eval mode."""
        with ExitStack() as places:
            for layer, place in enumerate(self.leaving):
                places.enter_context(place.seen(partial(self.leave, layer)))
            self.followed.run(model, images, self)

    def begin(self) -> None:
        """Forget the layer before."""
        self.first = None

    def leave(self, layer: int, tokens: Tensor) -> None:
        """Look at the tokens that leave a layer, once."""
        if layer == self.followed.layer and self.followed.is_projected:
            with torch._C.DisableTorchFunction():
                tokens = self.followed.by_image(tokens)
                if tokens is not None and tokens.shape[1] == self.followed.output.attn.shape[2]:
                    self.look(tokens)
            self.followed.output = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function. Behind a projection, a linear layer gives zeros, and a norm its input."""
        kwargs = kwargs or {}
        if not self.followed.is_projected or func not in (*NORMS, *LINEAR):
            return func(*args, **kwargs)
        self.first = self.first or func
        if func in NORMS:
            return args[0] if args else kwargs["input"]
        return torch.zeros_like(func(*args, **kwargs))


def _moved_as_expected(
    model: nn.Module, exchange: ExchangedWeights, copies: Tensor, begins_with_norm: bool
) -> Tensor | None:
    """Return which tokens of the changed copy move as expected, (N,); None if it is unknown."""
    moved = copies[exchange.layer + 1] - copies[0]
    if not moved.isfinite().all():
        return None
    if begins_with_norm and not moved.any():
        return None  # the MLP behind a norm has no skip connection, and is left out
    allowed = exchange.allowed(model, copies)
    return None if allowed is None else ((moved - exchange.expected()).abs() <= allowed).all(dim=1)


def _added_unlike_first(followed: FollowedAttention, tokens: Tensor) -> Tensor:
    """Return by how much more or less each image gets than the first beside the output of the attention, (K,).

    It is a share of the largest number of this output.
    """
    output = followed.output
    mixed = einsum(output.attn.to(output.values), output.values, "k h n m, k h m d -> k h n d")
    added = rearrange(mixed, "k h n d -> k n (h d)").to(output.projection) @ output.projection.mT
    entered = None if output.added_to is None else followed.by_image(output.added_to)
    further = tokens - added - (0 if entered is None else entered)
    return reduce((further - further[:1]).abs(), "k n c -> k", "max").nan_to_num() / added.abs().max()
