"""Places where the tokens of a model can be read and replaced: at its modules, and behind its norms.

Letters in the einops patterns: b images, n tokens, y x rows and columns of patches, d channels.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

NORMS = (F.layer_norm, torch.layer_norm, F.rms_norm, torch.rms_norm, F.normalize)

LAYOUTS = {"b y x d": "b (y x) d", "b d y x": "b (y x) d", "n b d": "b n d"}

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


@dataclass(frozen=True)
class Boundary(TokenPlace):
    """The input or the output of a module."""

    module: nn.Module
    side: Literal["input", "output"]

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """Within the context, replace the tokens at this place by ``change(tokens)``."""

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            if args:
                return (change(args[0]), *args[1:]), kwargs
            (name, tokens), *others = kwargs.items()
            return (), {name: change(tokens), **dict(others)}

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


class EveryNorm(TokenPlace):
    """What norms return, whether they are modules or functions."""

    def changed(self, change: Change) -> AbstractContextManager[None]:
        """Within the context, replace the tokens at this place by ``change(tokens)``."""
        return _NormsChanged(change)


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

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """Within the context, replace the tokens at this place by ``change(tokens)``."""

        def change_patches(patches: Tensor) -> Tensor:
            sizes = dict(zip(self.layout.split(), patches.shape, strict=True))
            tokens = change(rearrange(patches, f"{self.layout} -> {LAYOUTS[self.layout]}"))
            rows = {"y": sizes["y"]} if "y" in sizes else {}
            return rearrange(tokens, f"{LAYOUTS[self.layout]} -> {self.layout}", **rows)

        with self.place.changed(change_patches):
            yield


def tokens_at(place: TokenPlace, shape: Sequence[int], counts: Collection[int], num_images: int) -> TokenPlace | None:
    """Return a place as one of tokens (B, N, D), if what passes there has the shape of so many, or None."""
    if len(shape) == 3 and shape[1] in counts:
        return place
    if len(shape) == 3 and shape[0] in counts and shape[1] == num_images:
        return InSequence(place, "n b d")
    if len(shape) == 4 and shape[1] * shape[2] in counts:
        return InSequence(place, "b y x d")
    return InSequence(place, "b d y x") if len(shape) == 4 and shape[2] * shape[3] in counts else None


class _NormsChanged(TorchFunctionMode):
    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and pass the result of a norm to ``change``."""
        result = func(*args, **(kwargs or {}))
        return self.change(result) if func in NORMS else result
