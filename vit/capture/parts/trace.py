"""Follows tokens through the modules of a model, and finds its layers by the order of events.

Every library names its parts differently, and changes the names. The order stays the same: tokens enter the first
layer, each attention lies within a layer, and a last norm follows.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from vit.capture.attention import run_with_values
from vit.capture.checks.dependence import Dependents, Made, find_dependents, influential
from vit.capture.experiments.graph import graph_alone
from vit.capture.parts.token_places import (
    Boundary,
    InSequence,
    NormResult,
    OneTime,
    TokenPlace,
    seen_norms,
    with_argument,
)

LIKE = 1e-2  # of the largest number: what the small number beside a variance may change


@dataclass(frozen=True)
class Parts:
    """The places in a ViT that its tokens pass through."""

    entry: Boundary | None = None  # where the tokens enter the first layer; None if no module takes or returns them
    # Such as "blocks.0"; empty if the layers share one module, or a module gets no residual stream but its norm.
    layer_names: list[str] = field(default_factory=list)
    layers: list[Boundary] = field(default_factory=list)  # the input of each layer: the residual stream before it
    # Where the tokens that enter the attention of each layer may be: the outputs of norms before it, in order, then the
    # input of the layer. ``attention_input`` tells.
    before_attention: list[list[TokenPlace]] = field(default_factory=list)
    last: Boundary | None = None  # the input of the final norm; None if there is none. ``end_of_stream`` finds it


@dataclass(eq=False)
class TokenEvent:
    """Tokens that enter or leave a module."""

    path: str
    boundary: Boundary
    shape: torch.Size
    tokens: Tensor | None  # kept only before the first attention, to save memory


@dataclass
class NormEvent:
    """What a norm returns."""

    place: NormResult
    shape: torch.Size
    num_before: int  # number of token events before it


@dataclass
class AttentionEvent:
    """One attention call."""

    path: str  # of the innermost module that contains it
    call: int  # its number among all attentions
    shape: torch.Size  # (B, H, N, M)
    made_by: Made  # its nodes in the autograd graph of the logits
    num_before: int  # number of token events before it


@dataclass
class Trace:
    """The events of one forward pass, in their order. Attentions are those that influence the logits."""

    tokens: list[TokenEvent] = field(default_factory=list)
    norms: list[NormEvent] = field(default_factory=list)
    attentions: list[AttentionEvent] = field(default_factory=list)  # of all tokens to all tokens
    pooling: list[AttentionEvent] = field(default_factory=list)  # of one query, which pools the tokens
    # Calls a module with other tokens, and all else as in its last call.
    calls_again: dict[nn.Module, Callable[[Tensor], Any]] = field(default_factory=dict)
    # Of every attention call, even if it does not influence the logits.
    dependents: Dependents = field(default_factory=lambda: Dependents((), ()))

    def behind_layers(self) -> list[tuple[TokenPlace, torch.Size]]:
        """Return the places after the last attention of all tokens, and the shape of what passes them, in order."""
        first = self.attentions[-1].num_before
        # A norm comes between two events of modules, such as the input and the output of its own module.
        found: list[tuple[float, TokenPlace, torch.Size]]
        found = [(norm.num_before - 0.5, norm.place, norm.shape) for norm in self.norms if norm.num_before >= first]
        found += [
            (number, self.place_of(number), self.tokens[number].shape) for number in range(first, len(self.tokens))
        ]
        return [(place, shape) for _, place, shape in sorted(found, key=itemgetter(0))]

    def norms_beside(self, place: TokenPlace) -> list[tuple[TokenPlace, torch.Size]]:
        """Return what norms return, of modules or functions, and its shape: those after a place of ``behind_layers``.

        If none comes after it, they are those before it, unless the place is itself what a norm returns.
        """
        behind = self.behind_layers()
        inner = place.place if isinstance(place, InSequence) else place
        number = [other for other, _ in behind].index(inner)
        of_norms = [self.is_norm(*found) for found in behind]
        start, end = (number + 1, len(behind)) if any(of_norms[number:]) else (0, number)
        return [found for found, of_norm in list(zip(behind, of_norms, strict=True))[start:end] if of_norm]

    def is_norm(self, place: TokenPlace, shape: torch.Size) -> bool:
        """Return whether a place is what a norm returns."""
        inner = place.place if isinstance(place, OneTime) else place
        return isinstance(inner, NormResult) or (
            isinstance(inner, Boundary)
            and inner.side == "output"
            and not isinstance(inner.module, nn.Linear | nn.Identity | nn.modules.dropout._DropoutNd)
            and not _projects(inner.module)
            and _normalises(inner.module, shape, self.calls_again.get(inner.module, inner.module))
        )

    def output_of(self, path: str) -> Boundary | None:
        """Return the output of a module, or None if it is not called."""
        of_module = (event.boundary for event in reversed(self.tokens) if event.path == path)
        return next((boundary for boundary in of_module if boundary.side == "output"), None)

    def place_of(self, number: int) -> TokenPlace:
        """Return the place of an event, at its own time if tokens pass the place more than once."""
        boundary = self.tokens[number].boundary
        times = [other for other, event in enumerate(self.tokens) if event.boundary == boundary]
        return boundary if len(times) == 1 else OneTime(boundary, times.index(number))


def trace_forward(model: nn.Module, images: Tensor) -> tuple[Trace, Tensor]:
    """Pass images (B, C, H, W) through a model and return the events and the logits."""
    trace, active = Trace(), []
    events: list[AttentionEvent] = []

    def record_attention(call: int, attn: Tensor, values: Tensor) -> Tensor:
        copied = attn.clone()
        made_by = Made(copied.grad_fn, values.grad_fn)
        events.append(AttentionEvent(active[-1], call, attn.shape, made_by, len(trace.tokens)))
        return copied

    def record_tokens(path: str, boundary: Boundary, tokens: Any) -> None:
        if isinstance(tokens, Tensor):
            kept = None if events else tokens.detach()
            trace.tokens.append(TokenEvent(path, boundary, tokens.shape, kept))

    def record_norm(number: int, tokens: Tensor) -> None:
        trace.norms.append(NormEvent(NormResult(number), tokens.shape, len(trace.tokens)))

    def enter(path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        active.append(path)
        if given := [*args, *kwargs.values()]:
            number = next((number for number, each in enumerate(given) if _are_tokens(each, len(images))), 0)
            record_tokens(path, Boundary(module, "input", number), given[number])
            trace.calls_again[module] = partial(_call_with, module, args, kwargs, number)

    def leave(path: str, module: nn.Module, _: Any, output: Any) -> None:
        active.pop()
        tokens = output[0] if isinstance(output, tuple) and output else output
        record_tokens(path, Boundary(module, "output"), tokens)

    with ExitStack() as hooks, torch.enable_grad(), graph_alone(), seen_norms(record_norm):
        for path, module in model.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(partial(enter, path), with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(partial(leave, path)))
        logits = run_with_values(model, images, record_attention)
    trace.dependents = find_dependents(model, images[:1], logits, [event.made_by for event in events])
    layers = [events[call] for call in influential(trace.dependents)]
    trace.attentions = [event for event in layers if event.shape[-2] > 1]
    trace.pooling = [event for event in layers if event.shape[-2] == 1]
    return trace, logits


def find_parts(trace: Trace, num_tokens: int) -> tuple[Parts, list[Boundary]]:
    """Find the parts of a model by the order of events. If its layers share one module, all parts are empty.

    Returns:
        The parts but for the last, and the inputs of the modules after the layers, in order. The last is one of them.
    """
    num_images = trace.attentions[0].shape[0]  # a model that passes several views of an image has more rows of tokens
    numbered = [
        (number, event)
        for number, event in enumerate(trace.tokens)
        if event.shape[:-1] == (num_images, num_tokens) and len(event.shape) == 3
    ]
    events = [event for _, event in numbered]
    layer_names = _layer_names(trace)
    inside = [  # what leaves a layer does not enter it
        [event for number, event in numbered if number < attention.num_before and _within(event.path, name)]
        for attention, name in zip(trace.attentions, layer_names, strict=False)
    ]
    if not layer_names or not all(inside):
        return Parts(), []
    layers = [of_layer[0] for of_layer in inside]
    norms = [_norms(trace, attention, layer) for attention, layer in zip(trace.attentions, layers, strict=True)]
    first = next(i for i, event in enumerate(events) if event is layers[0])
    before = events[:first] + ([layers[0]] if layers[0].path == layer_names[0] else [])
    entered = layers[0].tokens  # None if an attention without influence came before
    same = (event for event in reversed(before) if entered is not None and torch.equal(event.tokens, entered))
    entry = next(same, None)
    end = max(i for i, event in enumerate(events) if _within(event.path, layer_names[-1]))
    parts = Parts(
        entry and entry.boundary,
        layer_names,
        [event.boundary for event in layers],
        [[*of_layer, layer.boundary] for of_layer, layer in zip(norms, layers, strict=True)],
    )
    return parts, [event.boundary for event in events[end + 1 :] if event.boundary.side == "input"]


def _norms(trace: Trace, attention: AttentionEvent, layer: TokenEvent) -> list[TokenPlace]:
    """Return the outputs of the norms between the input of a layer and its attention, in order.

    A norm gives the same for tokens of twice the length. Those over batches and others that need more than tokens are
    told by having no matrix.
    """
    start = trace.tokens.index(layer)
    before = enumerate(trace.tokens[start : attention.num_before], start)
    found: list[tuple[float, TokenPlace]] = [
        (number, trace.place_of(number))
        for number, event in before
        if event.shape == layer.shape and trace.is_norm(event.boundary, event.shape)
    ]
    functions = (norm for norm in trace.norms if start < norm.num_before <= attention.num_before)
    found += [(norm.num_before - 0.5, norm.place) for norm in functions if norm.shape == layer.shape]
    return [place for _, place in sorted(found, key=itemgetter(0))]


@torch.no_grad()
def _normalises(module: nn.Module, shape: torch.Size, call: Callable[[Tensor], Any]) -> bool:
    """Return whether a module gives the same for tokens of twice the length, or cannot be asked.

    >>> norm, function = nn.LayerNorm(4), nn.Tanh()
    >>> _normalises(norm, (2, 3, 4), norm), _normalises(function, (2, 3, 4), function)
    (True, False)
    """
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()):
        return True
    numbers = next(chain(module.parameters(), module.buffers()), torch.empty(0))
    tokens = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(numbers)
    try:
        one, other = call(tokens), call(2 * tokens)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # of a stranger's module that takes tokens of another place
        return True
    return isinstance(one, Tensor) and torch.allclose(one, other, rtol=LIKE, atol=LIKE * float(one.abs().max()))


def _call_with(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], number: int, tokens: Tensor) -> Any:
    args, kwargs = with_argument(args, kwargs, number, lambda _: tokens)
    return module(*args, **kwargs)


def _are_tokens(argument: Any, num_images: int) -> bool:
    """Return whether an argument of a module may be tokens: (B, N, D), (N, B, D) or (B, rows, columns, D)."""
    return (
        isinstance(argument, Tensor)
        and argument.is_floating_point()
        and argument.ndim in (3, 4)
        and num_images in argument.shape[:2]
        and min(argument.shape[:2]) > 1
    )


def _projects(module: nn.Module) -> bool:
    """Return whether a module is a projection of tokens: it has a matrix, itself or in a part, as an adapter has.

    >>> _projects(nn.Linear(4, 4)), _projects(nn.LayerNorm(4)), _projects(nn.BatchNorm1d(4))
    (True, False, False)
    """
    return any(parameter.ndim > 1 and min(parameter.shape) > 1 for parameter in module.parameters())


def _layer_names(trace: Trace) -> list[str]:
    """Return the path of each layer: the shortest that no other attention is below (vit.layers.0, stages.1.0).

    A single layer ends at the first number.
    """
    split = [attention.path.split(".") for attention in trace.attentions]
    if len({attention.path for attention in trace.attentions}) < len(split):
        return []  # layers share one module
    found = []
    for path in split:
        heads = [path[: depth + 1] for depth in range(len(path))]
        alone = [
            head
            for head in heads
            if (head[-1][-1:].isdigit() if len(split) == 1 else sum(other[: len(head)] == head for other in split) == 1)
        ]
        if not alone:
            return []
        found.append(".".join(alone[0]))
    return found


def _within(path: str, layer: str) -> bool:
    return path == layer or path.startswith(f"{layer}.")
