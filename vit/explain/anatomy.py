"""Where a ViT has its parts, found by watching one image pass through it.

Every library names them differently, and changes the names. What does not change is the order of things: the tokens
that enter the first layer, a layer around each attention, a last norm, and logits that read some of the tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vit.explain.capture import check_images, check_unmoved, check_visible, logits_of, run_intercepted

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


@dataclass(frozen=True)
class Anatomy:
    """The parts of a ViT.

    Attributes:
        grid: Rows and columns of patches.
        num_prefix_tokens: Tokens before the patches: class token, distillation token, registers.
        num_tokens: All tokens of an image.
        depth: Number of layers.
        readout: How much each token counts for the logits, (N,), sums to one: 1 for the class token, or 1 / N for each
            of those that are averaged. Class token and mean side by side ("cls+mean") count half each.
        pooled: Whether an attention with one query gathers the tokens after the last layer.
        entry: Where the tokens enter the first layer; None if no module hands them over.
        layer_names: Where each layer is among the modules, such as "blocks.0"; empty if they share one module.
        layers: What enters each layer, the residual stream before it.
        norms: What leaves the first norm of each layer.
        last: What enters the final norm; None if there is none.
    """

    grid: tuple[int, int]
    num_prefix_tokens: int
    num_tokens: int
    depth: int
    readout: Tensor
    pooled: bool
    entry: Boundary | None
    layer_names: list[str]
    layers: list[Boundary]
    norms: list[Boundary]
    last: Boundary | None

    @property
    def patches(self) -> slice:
        """Where the patches stand among the tokens."""
        return slice(self.num_prefix_tokens, self.num_prefix_tokens + self.grid[0] * self.grid[1])


def examine(
    model: nn.Module,
    images: Tensor,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
) -> Anatomy:
    """Find the parts of a model, and make sure that its attention is seen rightly, by passing the first image.

    Args:
        model: A ViT in eval mode.
        images: Images it takes, (B, C, H, W).
        grid: Rows and columns of patches, where the model does not say its ``patch_size``.
        num_prefix_tokens: Tokens before the patches, where they are not all that are no patches.

    Raises:
        ValueError: If attention cannot be seen (see ``capture_attention``), or grid and tokens do not fit.
    """
    check_images(images)
    check_visible(model)
    image = images[:1]
    with torch.no_grad():
        trace, shapes, logits = _watch(model, image)
        check_unmoved(logits, logits_of(model(image)))
    square = [layer for layer, shape in enumerate(shapes) if shape[-2] > 1]
    pooling = len(shapes) - len(square)
    if not square or pooling > 1:
        raise ValueError(
            f"{type(model).__name__} has {pooling} attentions of one query: only a single, last one is followed"
        )
    num_tokens = shapes[square[0]][-1]
    grid = grid or patch_grid(model, image)
    num_patches = grid[0] * grid[1]
    read = _tokens_read(model, image, square[-1])
    prefix = num_tokens - num_patches if num_prefix_tokens is None else num_prefix_tokens
    if num_prefix_tokens is None and read[:num_patches].all() and not read[num_patches:].any():
        prefix = 0  # registers that stand behind the patches
    if prefix < 0 or prefix + num_patches > num_tokens:
        raise ValueError(
            f"{type(model).__name__} has {num_tokens} tokens, which do not hold {prefix} prefix tokens and a grid of "
            f"{grid[0]} x {grid[1]} = {num_patches} patches: give grid=(rows, columns) and num_prefix_tokens, if these "
            "are wrong; a model whose attention is over channels has no map"
        )
    patches = slice(prefix, prefix + num_patches)
    return Anatomy(
        grid,
        prefix,
        num_tokens,
        len(square),
        _readout(read, patches, everything=getattr(model, "pool_include_prefix", False)),
        bool(pooling),
        *_find_parts(trace, num_tokens),
    )


def patch_grid(model: nn.Module, images: Tensor) -> tuple[int, int]:
    """Rows and columns of patches, from the first ``patch_size`` that a module of the model has.

    Raises:
        ValueError: If there is none, or it does not divide the images.
    """
    for module in model.modules():
        size = getattr(module, "patch_size", None)
        if size is None:  # vit-pytorch cuts patches with an einops layer
            axes = getattr(module, "axes_lengths", {})
            size = (axes["p1"], axes["p2"]) if {"p1", "p2"} <= set(axes) else None
        if isinstance(size, int):
            size = (size, size)
        if isinstance(size, tuple | list) and len(size) == 2:
            rows, columns = images.shape[-2:]
            if rows % size[0] or columns % size[1]:
                raise ValueError(
                    f"images of {rows} x {columns} pixels are no whole number of patches of {size[0]} x {size[1]}: "
                    "resize them, or give grid=(rows, columns)"
                )
            return rows // size[0], columns // size[1]
    raise ValueError(f"{type(model).__name__} does not say its patch_size: give grid=(rows, columns)")


@dataclass
class _Event:
    """Tokens that entered or left a module while one image passed."""

    path: str
    boundary: Boundary
    shape: torch.Size
    tokens: Tensor | None  # before the first attention; those of all layers would be much memory


@dataclass
class _Trace:
    events: list[_Event]
    attention_paths: list[str]  # the innermost module that each layer's attention ran in

    def note(self, path: str, boundary: Boundary, tokens: Any) -> None:
        """Remember that tokens passed a boundary."""
        if isinstance(tokens, Tensor):
            kept = None if self.attention_paths else tokens
            self.events.append(_Event(path, boundary, tokens.shape, kept))


def _watch(model: nn.Module, image: Tensor) -> tuple[_Trace, list[torch.Size], Tensor]:
    trace, shapes, active = _Trace([], []), [], []

    def note(_: int, attn: Tensor) -> Tensor:
        shapes.append(attn.shape)
        if attn.shape[-2] > 1:
            trace.attention_paths.append(active[-1])
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


def _tokens_read(model: nn.Module, image: Tensor, layer: int) -> Tensor:
    """Which tokens the logits read: those whose row of the last attention has a gradient, (N,), boolean."""
    last = []

    def start_graph(index: int, attn: Tensor) -> Tensor:
        if index == layer:  # what comes before needs no graph, which would grow with depth
            torch.set_grad_enabled(True)
            last.append(attn.requires_grad_())
        return attn

    with torch.no_grad():  # which also sets back what is set above
        logits = run_intercepted(model, image, start_graph)
        # A random direction, as the plain sum of the logits may be the one that nothing moves.
        direction = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)).to(logits)
        (gradient,) = torch.autograd.grad((logits * direction).sum(), last)
    return gradient.abs().sum(dim=(0, 1, 3)) > 0


def _readout(read: Tensor, patches: slice, everything: bool) -> Tensor:
    if not read.any():  # a head of zeros, before training
        read = torch.arange(len(read), device=read.device) == 0
    prefix, rest = read.clone(), torch.zeros_like(read)
    prefix[patches], rest[patches] = False, read[patches]
    if everything or not (prefix.any() and rest.any()):
        return read / read.sum()
    return prefix / prefix.sum() / 2 + rest / rest.sum() / 2


def _find_parts(
    trace: _Trace, num_tokens: int
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
