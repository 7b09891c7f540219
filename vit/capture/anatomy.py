"""Where a ViT has its parts: its grid of patches, the tokens its logits read, its layers."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vit.capture.attention import check_images, check_unmoved, check_visible, logits_of, run_intercepted
from vit.capture.trace import Boundary, check_in_a_row, find_parts, watch


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


@torch.inference_mode(False)  # the read-out is found by a gradient, whatever the caller does
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
        ValueError: If attention cannot be seen (see ``capture_attention``), a layer has several of them side by side,
            or grid and tokens do not fit.
    """
    check_images(images)
    check_visible(model)
    image = images[:1]
    with torch.no_grad():
        trace, shapes, logits = watch(model, image)
        check_unmoved(logits, logits_of(model(image)))
    check_in_a_row(trace, type(model).__name__)
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
        *find_parts(trace, num_tokens),
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
