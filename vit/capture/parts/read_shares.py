"""Finds how much the logits read of each token, from their Jacobian with respect to the last tokens.

A head may read the class token, the mean of some tokens, both, or a weighted mean whose weights depend on the image.

Letters in the einops patterns: b batch, k logits, n tokens, h heads, m keys, d channels.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.capture.attention import run_intercepted
from vit.capture.experiments.graph import FollowValues
from vit.capture.experiments.moved import moved_by_images, two_of
from vit.capture.experiments.results_after import ResultsAfter
from vit.capture.interception.eager import as_written
from vit.capture.parts.last_tokens import logits_within
from vit.capture.parts.logits import result_of
from vit.capture.parts.token_places import KnownTokens, TokenPlace, changed_at
from vit.support.precision import at_least_float32

SQUASHING = (
    *(torch.sigmoid, Tensor.sigmoid, F.sigmoid, torch.tanh, Tensor.tanh, F.tanh),
    *(torch.clamp, Tensor.clamp, torch.clip, Tensor.clip, F.hardsigmoid, F.hardtanh, F.relu6),
)
SOFTMAXES = (torch.softmax, Tensor.softmax, F.softmax)  # over classes (B, K); attention has more axes
MOST_DIRECTIONS = 1024  # one for each logit; more logits, such as one for each pixel, are replaced by random mixtures
MIXTURES = 256  # their number: the shares are then right to about one percent
FIRST = 16  # of them, which show whether one token alone is read


@dataclass(frozen=True)
class Reading:
    """Where the logits read the tokens.

    Attributes:
        last: The last place where everything that the logits read passes as tokens, or None if there is no such place.
            Tokens before the patches may be left out there.
        call: The last attention of all tokens. Its rows stand for the tokens if there is neither place nor result.
        num_tokens: Number N of tokens.
        order: The places of the tokens in the order of the first layer, or None if they are in order.
        result: The number of the result of a function, as ``last_result`` returns it, if no module has the tokens.
        norms: The last norms, by whose tokens the Jacobian is taken instead, if the last place is not one of them.
    """

    last: KnownTokens | None
    call: int
    num_tokens: int
    order: Tensor | None = None
    result: int | None = None
    norms: tuple[KnownTokens, ...] = ()

    @property
    def place(self) -> TokenPlace | None:
        """The last place, without its tokens."""
        return self.last and self.last.place

    @torch.inference_mode(False)
    def shares(
        self, model: nn.Module, images: Tensor, contrast: Tensor | None = None, *, in_short: bool = False
    ) -> Tensor:
        """Return the share of each token in the logits of images (B, C, H, W): (B, N), rows sum to one.

        A share is the norm of the Jacobian of the logits with respect to the token. Of more than 1,024 logits it is
        estimated by random mixtures, and ``in_short`` by few of them, to compare images. If all norms are 0, as with a
        head of zeros, the first token has share 1. With a contrast (B, classes), it is that of the sum of the logits
        with these weights. If all are 0 then, all tokens have share 1.

        Raises:
            ValueError: If the gradient of an image is 0 although the output depends on it: it is not 0 without
                sigmoid, clamp or softmax, it is not 0 for other images, or the output differs between images.
        """
        norms = self._norms(model, images, contrast, in_short)
        if contrast is None and (flat := (norms == 0).all(dim=1)).any():
            with _Unsquashed():
                has_slopes = bool((self._norms(model, images[flat], None) > 0).any())
            if has_slopes or (norms > 0).any() or moved_by_images(model, two_of(images[flat])).any():
                raise ValueError(
                    f"the output of {type(model).__name__} is saturated, as by a sigmoid, softmax, clamp or rounding: "
                    "its gradient is 0, so which tokens it reads is not known: return the logits"
                )
        none = torch.zeros_like(norms) if contrast is None else torch.ones_like(norms)
        none[:, 0] = 1
        total = reduce(norms, "b n -> b 1", "sum")
        return torch.where(total > 0, norms / total, none)

    def _norms(self, model: nn.Module, images: Tensor, contrast: Tensor | None, in_short: bool = False) -> Tensor:
        """Return the norm of the Jacobian of the logits with respect to each token: (B, N)."""
        if self.last:
            return _norms_at(self.norms or (self.last,), self.num_tokens, model, images, contrast, in_short)
        found = self._norms_of_result(model, images, contrast, in_short) if self.result else None
        norms = _norms_of_rows(self.call, model, images, contrast, in_short) if found is None else found
        return norms if self.order is None else norms[:, self.order]

    def _norms_of_result(
        self, model: nn.Module, images: Tensor, contrast: Tensor | None, in_short: bool
    ) -> Tensor | None:
        """Return the norm of the Jacobian with respect to the result of a function, or None if no axis counts tokens.

        Rows and columns of patches may have an axis each, as in a convolution behind the last layer.
        """
        if len(images) == self.num_tokens:  # an axis of this size could count either
            of_all = None if contrast is None else torch.cat([contrast, contrast[:1]])
            found = self._norms_of_result(model, torch.cat([images, images[:1]]), of_all, in_short)
            return None if found is None else found[:-1]
        kept: list[Tensor] = []

        def start_graph(number: int, result: Tensor) -> Tensor:
            if number != self.result or kept:
                return result
            torch.set_grad_enabled(True)
            kept.append(result.detach().requires_grad_())
            return kept[0]

        with torch.no_grad(), FollowValues():
            logits = logits_within(model, images, ResultsAfter(self.call, start_graph))
            pattern = _pattern_of_tokens(kept[0].shape, len(images), self.num_tokens)
            return pattern and _root_of_squares(model, logits, [_Leaf(kept[0], pattern)], contrast, in_short)


class _Unsquashed(TorchFunctionMode):
    """Within the context, functions that squash numbers into a range return their input."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, unless it squashes numbers into a range."""
        squashes = func in SQUASHING or (func in SOFTMAXES and bool(args) and args[0].ndim == 2)
        return args[0] if squashes and args else func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class _Leaf:
    """What the Jacobian is taken by, of which some numbers belong to each of N tokens."""

    numbers: Tensor
    pattern: str  # leaves the axes of images and of tokens
    tokens: Tensor | None = None  # the number of each of M tokens, (M,), or -1 for none; None: they are all, in order
    num_tokens: int = 0

    def of_all(self, slope: Tensor) -> Tensor:
        """Return the slopes of all tokens, (B, N, D), or as they are."""
        if self.tokens is None:
            return slope
        known = self.tokens >= 0
        zeros = slope.new_zeros(len(slope), self.num_tokens, slope.shape[-1])
        return zeros.index_add(1, self.tokens[known].to(slope.device), slope[:, known])


def _norms_at(
    places: Sequence[KnownTokens],
    num_tokens: int,
    model: nn.Module,
    images: Tensor,
    contrast: Tensor | None,
    in_short: bool,
) -> Tensor:
    """Return the norm of the Jacobian of the logits with respect to the tokens at some places: (B, N)."""
    leaves: list[_Leaf] = []

    def start_graph(index: int, tokens: Tensor) -> Tensor:
        torch.set_grad_enabled(True)  # the layers before need no graph, which saves memory
        with torch._C.DisableTorchFunction():  # else FollowValues leads from one place to the place before it
            leaf = tokens.detach().requires_grad_()
        leaves.append(_Leaf(leaf, "b n d -> b n", places[index].tokens, num_tokens))
        return leaf

    def norms(around: AbstractContextManager[Any]) -> Tensor:
        leaves.clear()
        # no_grad restores the mode that start_graph changes.
        with as_written(), torch.no_grad(), around, changed_at([known.place for known in places], start_graph):
            return _root_of_squares(model, result_of(model(images)), leaves, contrast, in_short)

    try:
        return norms(FollowValues())
    except RuntimeError:  # a model that changes a view in place does not allow a graph to begin within no_grad
        return norms(nullcontext())


def _pattern_of_tokens(shape: Sequence[int], images: int, tokens: int) -> str | None:
    """Return the pattern that leaves the axes of images and of tokens, or None if it is not clear which these are.

    >>> _pattern_of_tokens((2, 17, 8), 2, 17), _pattern_of_tokens((17, 2, 8), 2, 17)
    ('b n a2 -> b n', 'n b a2 -> b n')
    >>> _pattern_of_tokens((2, 8, 4, 3), 2, 12), _pattern_of_tokens((2, 8, 17, 17), 2, 17)
    ('b a1 n m -> b (n m)', None)
    """
    batch = next((axis for axis in (0, 1) if shape[axis] == images), None)
    names = [f"a{axis}" for axis in range(len(shape))]
    counting = [axis for axis, size in enumerate(shape) if size == tokens and axis != batch]
    if len(shape) == 3 and len(counting) > 1:  # there are as many channels, which come last
        counting = counting[:1]
    pairs = [(i, i + 1) for i in range(1, len(shape) - 1) if i != batch and shape[i] * shape[i + 1] == tokens]
    if batch is None or len(counting) > 1 or (not counting and len(pairs) != 1):
        return None
    names[batch] = "b"
    for axis, name in zip(counting or pairs[0], "nm", strict=False):
        names[axis] = name
    return f"{' '.join(names)} -> b {'n' if counting else '(n m)'}"


def _norms_of_rows(call: int, model: nn.Module, images: Tensor, contrast: Tensor | None, in_short: bool) -> Tensor:
    """Return the norm of the Jacobian of the logits with respect to the rows of an attention: (B, N)."""
    kept: list[Tensor] = []

    def start_graph(index: int, attn: Tensor) -> Tensor:
        if index == call:
            torch.set_grad_enabled(True)
            kept.append(attn.detach().requires_grad_())
            return kept[0]
        return attn

    with torch.no_grad(), FollowValues():
        logits = run_intercepted(model, images, start_graph)
        return _root_of_squares(model, logits, [_Leaf(kept[0], "b h n m -> b n")], contrast, in_short)


def _root_of_squares(
    model: nn.Module, logits: Tensor, leaves: Sequence[_Leaf], contrast: Tensor | None, in_short: bool
) -> Tensor:
    if not logits.requires_grad:
        raise _no_gradient(model)
    flat = rearrange(logits, "b ... -> b (...)")
    count = flat.shape[1]
    if contrast is not None:
        return _squares(model, flat, leaves, contrast[None]).sqrt()
    if count <= FIRST:
        return _squares(model, flat, leaves, torch.eye(count)).sqrt()
    mixtures = torch.randn(MIXTURES, count, generator=torch.Generator().manual_seed(0))
    first = _squares(model, flat, leaves, mixtures[:FIRST])
    # Where one token alone is read, its share is 1 by any direction.
    if in_short or bool(((first > 0).sum(dim=1) == 1).all()):
        return first.sqrt()
    if count <= MOST_DIRECTIONS:
        return _squares(model, flat, leaves, torch.eye(count)).sqrt()
    return (first + _squares(model, flat, leaves, mixtures[FIRST:])).sqrt()


def _squares(model: nn.Module, flat: Tensor, leaves: Sequence[_Leaf], directions: Tensor) -> Tensor:
    """Return the sum of the squared slopes of the logits (B, K) in these directions, (R, K) or (1, B, K): (B, N)."""
    squares = torch.zeros((), device=flat.device)
    for direction in directions.to(flat):
        numbers = [leaf.numbers for leaf in leaves]
        slopes = torch.autograd.grad((flat * direction).sum(), numbers, retain_graph=True, allow_unused=True)
        if all(slope is None for slope in slopes):
            raise _no_gradient(model)
        # In float16 the squares of small slopes are zero.
        of_leaves = zip(leaves, slopes, strict=True)
        found = [leaf.of_all(at_least_float32(slope.detach())) for leaf, slope in of_leaves if slope is not None]
        squares = squares + reduce(sum(found) ** 2, leaves[0].pattern, "sum")  # a token may stand at several places
    return squares


def _no_gradient(model: nn.Module) -> ValueError:
    return ValueError(
        f"the logits of {type(model).__name__} have no gradient, as of quantised layers, so which tokens they read is "
        "not known: explain the model before it was quantised, or read its weights by capture_attention"
    )
