"""Places where the tokens of a model can be read and replaced: at its modules, and behind its norms.

Letters in the einops patterns: b images, n tokens, y x rows and columns of patches, d channels.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

NORMS = (
    *(F.layer_norm, torch.layer_norm, torch.native_layer_norm, F.rms_norm, torch.rms_norm),
    *(F.group_norm, torch.group_norm, F.normalize),
)

LAYOUTS = {
    "b y x d": "b (y x) d",
    "b d y x": "b (y x) d",
    "n b d": "b n d",
    "b d": "b 1 d",
    "(b n) d": "b n d",
    "(n b) d": "b n d",
}

Change = Callable[[Tensor], Tensor]


class TokenPlace(ABC):
    """A place where tokens can be read and replaced."""

    @abstractmethod
    def changed(self, change: Change) -> AbstractContextManager[None]:
        """Within the context, replace the tokens at this place by ``change(tokens)``."""

    def seen(self, look: Callable[[Tensor], object]) -> AbstractContextManager[None]:
        """Within the context, call ``look`` with the tokens at this place, and leave them as they are."""

        def unchanged(tokens: Tensor) -> Tensor:
            look(tokens)
            return tokens

        return self.changed(unchanged)


def with_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], number: int, change: Change
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call, of which one is changed. Keywords are numbered after the others.

    >>> with_argument((1, 2), {"scale": 3}, 2, lambda number: -number)
    ((1, 2), {'scale': -3})
    """
    given = [*args, *kwargs.values()]
    given[number] = change(given[number])
    return tuple(given[: len(args)]), dict(zip(kwargs, given[len(args) :], strict=True))


@dataclass(frozen=True)
class Boundary(TokenPlace):
    """The input or the output of a module.

    Attributes:
        module: The module.
        side: The side of the module.
        number: Of the argument, on the side of the input: keywords are numbered after the others.
    """

    module: nn.Module
    side: Literal["input", "output"]
    number: int = 0

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """Within the context, replace the tokens at this place by ``change(tokens)``."""

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            return with_argument(args, kwargs, self.number, change)

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if isinstance(output, Tensor):
                return change(output)
            if not isinstance(output, tuple | list):
                raise ValueError(
                    f"{type(module).__name__} returns a {type(output).__name__}, in which its tokens are not known: "
                    "return them as a tensor, or first in a tuple"
                )
            return change(output[0]), *output[1:]

        if self.side == "input":
            handle = self.module.register_forward_pre_hook(before, with_kwargs=True)
        else:
            handle = self.module.register_forward_hook(after)
        with handle:
            yield


@dataclass(frozen=True)
class NormResult(TokenPlace):
    """What one of the norms of a pass returns, whether it is a module or a function."""

    number: int  # among all norms of a pass, from 0

    def changed(self, change: Change) -> AbstractContextManager[None]:
        """Within the context, replace the tokens at this place by ``change(tokens)``."""
        return _changed_norms({self.number: change})


@dataclass(frozen=True)
class OneTime(TokenPlace):
    """A place that tokens pass more than once, at one of these times."""

    place: TokenPlace
    number: int  # of the time, from 0

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """Within the context, replace the tokens at this place by ``change(tokens)``."""
        times = count()
        with self.place.changed(lambda tokens: change(tokens) if next(times) == self.number else tokens):
            yield


@dataclass(frozen=True)
class InSequence(TokenPlace):
    """A place of tokens in another layout of ``LAYOUTS``, which are read and replaced as (B, N, D)."""

    place: TokenPlace
    layout: str
    sizes: Mapping[str, int] = field(default_factory=dict)  # of the layout, which a pattern needs to take it apart

    def changed(self, change: Change) -> AbstractContextManager[None]:
        """Within the context, replace the tokens at this place by ``change(tokens)``."""
        return self.place.changed(self.arranged(change))

    def arranged(self, change: Change) -> Change:
        """Return the change of what passes the place that changes tokens (B, N, D)."""

        def change_all(numbers: Tensor) -> Tensor:
            tokens = change(rearrange(numbers, f"{self.layout} -> {LAYOUTS[self.layout]}", **self.sizes))
            return rearrange(tokens, f"{LAYOUTS[self.layout]} -> {self.layout}", **self.sizes)

        return change_all


@dataclass(frozen=True, eq=False)
class KnownTokens:
    """A place, and which tokens stand there.

    Attributes:
        place: The place.
        tokens: The number of the token at each of its M positions, (M,); -1 if the layers have no such token.
    """

    place: TokenPlace
    tokens: Tensor


@contextmanager
def changed_at(places: Sequence[TokenPlace], change: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """Within the context, replace the tokens at the place of each index by ``change(index, tokens)``."""
    norms: dict[int, Change] = {}  # all at once, as each token may have a norm of its own
    with ExitStack() as stack:
        for index, place in enumerate(places):
            inner, own = place, partial(change, index)
            if isinstance(place, InSequence):
                inner, own = place.place, place.arranged(own)
            if isinstance(inner, NormResult):
                norms[inner.number] = own
            else:
                stack.enter_context(inner.changed(own))
        if norms:
            stack.enter_context(_changed_norms(norms))
        yield


def seen_at(places: Sequence[TokenPlace], look: Callable[[int, Tensor], object]) -> AbstractContextManager[None]:
    """Within the context, call ``look`` with the index of each of these places and the tokens there."""
    return changed_at(places, _unchanged(look))


def _unchanged(look: Callable[[int, Tensor], object]) -> Callable[[int, Tensor], Tensor]:
    def change(index: int, tokens: Tensor) -> Tensor:
        look(index, tokens)
        return tokens

    return change


def tokens_at(place: TokenPlace, shape: Sequence[int], counts: Collection[int], num_images: int) -> TokenPlace | None:
    """Return a place as one of tokens (B, N, D), if what passes there has the shape of so many, or None."""
    if len(shape) == 3 and shape[1] in counts:
        return place
    if len(shape) == 3 and shape[0] in counts and shape[1] == num_images:
        return InSequence(place, "n b d")
    if len(shape) == 4 and shape[1] * shape[2] in counts:
        return InSequence(place, "b y x d", {"y": shape[1]})
    return InSequence(place, "b d y x", {"y": shape[2]}) if len(shape) == 4 and shape[2] * shape[3] in counts else None


def some_tokens_at(place: TokenPlace, shape: Sequence[int], num_tokens: int, num_images: int) -> list[TokenPlace]:
    """Return the place of a norm as one of some of N tokens, in each way that the shape of what it returns allows.

    It may have normed one token of each image, (B, D), or the tokens of all images in one row, (B n, D).
    """
    if len(shape) == 2 and shape[0] == num_images:
        return [InSequence(place, "b d")]
    if len(shape) == 2:
        sizes = {"n": shape[0] // num_images}
        is_row = shape[0] % num_images == 0 and sizes["n"] <= num_tokens
        return [InSequence(place, layout, sizes) for layout in ("(b n) d", "(n b) d") if is_row]
    if len(shape) == 4 and shape[0] == num_images and shape[1] * shape[2] <= num_tokens:
        return [InSequence(place, "b y x d", {"y": shape[1]})]
    if len(shape) == 3 and shape[0] == num_images and shape[1] <= num_tokens:
        return [place]
    return [InSequence(place, "n b d")] if len(shape) == 3 and shape[1] == num_images and shape[0] <= num_tokens else []


def _changed_norms(changes: Mapping[int, Change]) -> AbstractContextManager[None]:
    return _NormsChanged(lambda number, tokens: changes[number](tokens) if number in changes else tokens)


def seen_norms(look: Callable[[int, Tensor], object]) -> AbstractContextManager[None]:
    """Within the context, call ``look`` with the number of each norm and what it returns."""
    return _NormsChanged(_unchanged(look))


class _NormsChanged(TorchFunctionMode):
    def __init__(self, change: Callable[[int, Tensor], Tensor]) -> None:
        super().__init__()
        self.change, self.numbers = change, count()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and pass the number of a norm and its result to ``change``."""
        result = func(*args, **(kwargs or {}))
        if func not in NORMS:
            return result
        if isinstance(result, tuple):  # with the mean and the length of each token
            return self.change(next(self.numbers), result[0]), *result[1:]
        return self.change(next(self.numbers), result)
