"""What happens in a model while one image passes: which modules tokens enter and leave, and where they attend.

Every library names its parts differently, and changes the names. What does not change is the order of things: the
tokens that enter the first layer, a layer around each attention, a last norm.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vit.capture.attention import run_intercepted

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Boundary:
    """A place between modules where tokens can be read and replaced: what enters a module, or what leaves it."""

    module: nn.Module
    side: Literal["input", "output"]

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """Within it, the tokens there are what ``change`` makes of them."""

        def before(
            _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
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
        try:
            yield
        finally:
            handle.remove()


@dataclass
class Event:
    """Tokens that entered or left a module while one image passed."""

    path: str
    boundary: Boundary
    shape: torch.Size
    tokens: Tensor | None  # before the first attention; those of all layers would be much memory


@dataclass
class Trace:
    """What happened, in its order."""

    events: list[Event]
    attention_paths: list[str]  # the innermost module that each layer's attention ran in
    events_before: list[int]  # how many events there were before each of these

    def note(self, path: str, boundary: Boundary, tokens: Any) -> None:
        """Remember that tokens passed a boundary."""
        if isinstance(tokens, Tensor):
            kept = None if self.attention_paths else tokens
            self.events.append(Event(path, boundary, tokens.shape, kept))


def watch(model: nn.Module, image: Tensor) -> tuple[Trace, list[torch.Size], Tensor]:
    """Pass an image, and note what happens: the trace, the shape of each attention, and the logits."""
    trace, shapes, active = Trace([], [], []), [], []

    def note(_: int, attn: Tensor) -> Tensor:
        shapes.append(attn.shape)
        if attn.shape[-2] > 1:
            trace.attention_paths.append(active[-1])
            trace.events_before.append(len(trace.events))
        return attn

    def enter(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            active.append(path)
            tokens = args[0] if args else next(iter(kwargs.values()), None)
            trace.note(path, Boundary(module, "input"), tokens)

        return hook

    def leave(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            active.pop()
            tokens = output[0] if isinstance(output, tuple) and output else output
            trace.note(path, Boundary(module, "output"), tokens)

        return hook

    handles = []
    try:
        for path, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(enter(path), with_kwargs=True))
            handles.append(module.register_forward_hook(leave(path)))
        logits = run_intercepted(model, image, note)
    finally:
        for handle in handles:
            handle.remove()
    return trace, shapes, logits


def find_parts(
    trace: Trace, num_tokens: int
) -> tuple[Boundary | None, list[str], list[Boundary], list[Boundary], Boundary | None]:
    """Entry, names of the layers, layers, first norms and final norm, by the order of events."""
    tokens_pass = [event for event in trace.events if len(event.shape) == 3 and event.shape[-2] == num_tokens]
    layer_paths = _layer_paths(trace.attention_paths)
    inside = [[event for event in tokens_pass if _within(event.path, path)] for path in layer_paths]
    if not layer_paths or not all(inside):
        return None, [], [], [], None
    layers = [events[0] for events in inside]
    norms = [next(event for event in events if event.boundary.side == "output") for events in inside]
    first = next(i for i, event in enumerate(tokens_pass) if event is layers[0])
    before = tokens_pass[:first] + ([layers[0]] if layers[0].path == layer_paths[0] else [])
    entry = next((e for e in reversed(before) if torch.equal(e.tokens, layers[0].tokens)), None)
    end = max(i for i, event in enumerate(tokens_pass) if _within(event.path, layer_paths[-1]))
    after = (event for event in tokens_pass[end + 1 :] if event.boundary.side == "input")
    last = next(after, None)
    boundaries = [event.boundary for event in layers], [event.boundary for event in norms]
    return entry and entry.boundary, layer_paths, *boundaries, last and last.boundary


def check_in_a_row(trace: Trace, model: str) -> None:
    """Raise a ValueError if attentions stand side by side, whose maps do not multiply as those of layers do."""
    layer_paths = _layer_paths(trace.attention_paths)
    parallel = len(set(layer_paths)) < len(layer_paths)
    # As in differential attention, where no tokens pass from one to the other. (A model without modules shows none.)
    within_one = any(
        path and path == next_path and not any(len(event.shape) == 3 for event in trace.events[start:stop])
        for (path, next_path), (start, stop) in zip(
            pairwise(trace.attention_paths), pairwise(trace.events_before), strict=True
        )
    )
    if parallel or within_one:
        raise ValueError(
            f"{model} has attentions side by side in a layer, which would be taken for layers in a row: choose methods "
            "that need no attention (occlusion, input_gradient, integrated_gradients, smoothgrad), or look at the "
            "matrices themselves by capture_attention"
        )


def _layer_paths(attention_paths: list[str]) -> list[str]:
    """Paths of the layers: what the paths of their attentions have in common, and the first name that differs.

    >>> _layer_paths(["vit.layers.0.attention", "vit.layers.1.attention"])
    ['vit.layers.0', 'vit.layers.1']
    """
    split = [path.split(".") for path in attention_paths]
    if len(set(attention_paths)) < len(attention_paths):
        return []  # one module for all layers
    for depth, names in enumerate(zip(*split, strict=False)):
        if len(set(names)) > 1 or (len(split) == 1 and names[0][-1:].isdigit()):
            return [".".join(path[: depth + 1]) for path in split]
    return []


def _within(path: str, layer: str) -> bool:
    return path == layer or path.startswith(f"{layer}.")
