"""Follows the tokens of one image through the modules of a model, to find its layers by the order of events.

Every library names its parts differently, and changes the names. The order stays the same: the tokens that enter the
first layer, a layer around each attention, a last norm.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vit.capture.attention import run_intercepted

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Boundary:
    """A place between modules where tokens can be read and replaced: the input or the output of a module."""

    module: nn.Module
    side: Literal["input", "output"]

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """Replace the tokens at this place by ``change(tokens)`` within the context."""

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            if args:
                return (change(args[0]), *args[1:]), kwargs
            (name, tokens), *others = kwargs.items()
            return (), {name: change(tokens), **dict(others)}

        def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            return change(output) if isinstance(output, Tensor) else (change(output[0]), *output[1:])

        if self.side == "input":
            handle = self.module.register_forward_pre_hook(before, with_kwargs=True)
        else:
            handle = self.module.register_forward_hook(after)
        with handle:
            yield


@dataclass(frozen=True)
class Parts:
    """The places of a ViT where its tokens pass.

    Attributes:
        entry: Where the tokens enter the first layer; None if no module passes them on.
        layer_names: Names of the layers' modules, such as "blocks.0"; empty if the layers share one module.
        layers: The input of each layer, which is the residual stream before it.
        norms: The output of the first norm of each layer.
        last: The input of the final norm; None if there is none.
    """

    entry: Boundary | None = None
    layer_names: list[str] = field(default_factory=list)
    layers: list[Boundary] = field(default_factory=list)
    norms: list[Boundary] = field(default_factory=list)
    last: Boundary | None = None


@dataclass
class TokenEvent:
    """Tokens that enter or leave a module."""

    path: str
    boundary: Boundary
    shape: torch.Size
    tokens: Tensor | None  # before the first attention; those of all layers would take much memory


@dataclass
class AttentionEvent:
    """An attention of all tokens to all tokens."""

    path: str  # of the innermost module around it
    layer: int  # its number among all attentions
    num_tokens: int
    num_before: int  # token events before it


@dataclass
class Trace:
    """The events of one forward pass, in their order."""

    tokens: list[TokenEvent] = field(default_factory=list)
    attentions: list[AttentionEvent] = field(default_factory=list)
    num_pooling: int = 0  # attentions of one query


def trace_forward(model: nn.Module, image: Tensor) -> tuple[Trace, Tensor]:
    """Pass an image (1, C, H, W) through a model and return the events and the logits."""
    trace, active = Trace(), []

    def record_attention(layer: int, attn: Tensor) -> Tensor:
        if attn.shape[-2] > 1:
            trace.attentions.append(AttentionEvent(active[-1], layer, attn.shape[-1], len(trace.tokens)))
        else:
            trace.num_pooling += 1
        return attn

    def record_tokens(path: str, boundary: Boundary, tokens: Any) -> None:
        if isinstance(tokens, Tensor):
            kept = None if trace.attentions else tokens
            trace.tokens.append(TokenEvent(path, boundary, tokens.shape, kept))

    def enter(path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        active.append(path)
        record_tokens(path, Boundary(module, "input"), args[0] if args else next(iter(kwargs.values()), None))

    def leave(path: str, module: nn.Module, _: Any, output: Any) -> None:
        active.pop()
        tokens = output[0] if isinstance(output, tuple) and output else output
        record_tokens(path, Boundary(module, "output"), tokens)

    with ExitStack() as hooks:
        for path, module in model.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(partial(enter, path), with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(partial(leave, path)))
        return trace, run_intercepted(model, image, record_attention)


def find_parts(trace: Trace, num_tokens: int) -> Parts:
    """Find the parts of a model by the order of events; there are none if its layers share one module."""
    events = [event for event in trace.tokens if len(event.shape) == 3 and event.shape[-2] == num_tokens]
    layer_names = _layer_names(trace)
    inside = [[event for event in events if _within(event.path, name)] for name in layer_names]
    if not layer_names or not all(inside):
        return Parts()
    layers = [of_layer[0] for of_layer in inside]
    norms = [next(event for event in of_layer if event.boundary.side == "output") for of_layer in inside]
    first = next(i for i, event in enumerate(events) if event is layers[0])
    before = events[:first] + ([layers[0]] if layers[0].path == layer_names[0] else [])
    entry = next((event for event in reversed(before) if torch.equal(event.tokens, layers[0].tokens)), None)
    end = max(i for i, event in enumerate(events) if _within(event.path, layer_names[-1]))
    last = next((event for event in events[end + 1 :] if event.boundary.side == "input"), None)
    return Parts(
        entry and entry.boundary,
        layer_names,
        [event.boundary for event in layers],
        [event.boundary for event in norms],
        last and last.boundary,
    )


def check_sequential(trace: Trace, model: str) -> None:
    """Raise a ValueError if a layer has attentions side by side, whose maps do not multiply as those of layers do."""
    names = _layer_names(trace)
    parallel = len(set(names)) < len(names)
    # As in differential attention, where no tokens pass from one to the other. (A model without modules shows none.)
    within_one = any(
        attention.path
        and attention.path == following.path
        and not any(len(event.shape) == 3 for event in trace.tokens[attention.num_before : following.num_before])
        for attention, following in pairwise(trace.attentions)
    )
    if parallel or within_one:
        raise ValueError(
            f"{model} has attentions side by side in a layer, which would be taken for layers in a row: choose methods "
            "that need no attention (occlusion, input_gradient, integrated_gradients, smoothgrad), or look at the "
            "matrices themselves by capture_attention"
        )


def _layer_names(trace: Trace) -> list[str]:
    """Return the common start of the paths of all attentions with the first name that differs: "vit.layers.0"."""
    split = [attention.path.split(".") for attention in trace.attentions]
    if len({attention.path for attention in trace.attentions}) < len(split):
        return []  # one module for all layers
    for depth, names in enumerate(zip(*split, strict=False)):
        if len(set(names)) > 1 or (len(split) == 1 and names[0][-1:].isdigit()):
            return [".".join(path[: depth + 1]) for path in split]
    return []


def _within(path: str, layer: str) -> bool:
    return path == layer or path.startswith(f"{layer}.")
