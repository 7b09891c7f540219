"""Finds the parts of a ViT: its grid of patches, the tokens that its logits read, its layers."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vit.capture.attention import check_capturable, check_images, check_logits_unchanged, logits_of, run_intercepted
from vit.capture.trace import Parts, check_sequential, find_parts, trace_forward


@dataclass(frozen=True)
class Anatomy:
    """The parts of a ViT.

    Attributes:
        grid: Rows and columns of patches.
        num_prefix_tokens: Tokens before the patches: class token, distillation token, registers.
        num_tokens: Number of all tokens of an image.
        depth: Number of layers.
        readout: Share of each token in the features that the logits are computed from, (N,), sums to one. It is 1 for
            the class token, or 1 / N for each of N averaged tokens. Class token and mean side by side ("cls+mean")
            count half each. The tokens with a share are the read-out tokens.
        pooled: Whether an attention with one query gathers the tokens after the last layer.
        parts: The layers, and the places before and after them.
    """

    grid: tuple[int, int]
    num_prefix_tokens: int
    num_tokens: int
    depth: int
    readout: Tensor
    pooled: bool
    parts: Parts

    @property
    def patches(self) -> slice:
        """The positions of the patches among the tokens."""
        return slice(self.num_prefix_tokens, self.num_prefix_tokens + self.grid[0] * self.grid[1])


@torch.inference_mode(False)  # the read-out tokens are found by a gradient, in any mode of the caller
def examine(
    model: nn.Module, images: Tensor, grid: tuple[int, int] | None = None, num_prefix_tokens: int | None = None
) -> Anatomy:
    """Find the parts of a model and check that its attention can be captured, by passing the first image.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> examine(model, torch.randn(1, 3, 32, 32)).patches
    slice(1, 17, None)

    Args:
        model: A ViT in eval mode.
        images: Images as the model takes them, (B, C, H, W).
        grid: Rows and columns of patches; needed if no module of the model has a ``patch_size``.
        num_prefix_tokens: Tokens before the patches; needed if some non-patch tokens follow the patches.

    Raises:
        ValueError: If attention cannot be captured (see ``capture_attention``), a layer has several attentions side by
            side, or grid and tokens do not fit.
    """
    check_images(images)
    check_capturable(model)
    image = images[:1]
    with torch.no_grad():
        trace, logits = trace_forward(model, image)
        check_logits_unchanged(logits, logits_of(model(image)))
    check_sequential(trace, type(model).__name__)
    if not trace.attentions or trace.num_pooling > 1:
        raise ValueError(
            f"{type(model).__name__} has {trace.num_pooling} attentions of one query: only a single, last one is "
            "followed"
        )
    num_tokens = trace.attentions[0].num_tokens
    grid = grid or patch_grid(model, image)
    num_patches = grid[0] * grid[1]
    read = _tokens_read(model, image, trace.attentions[-1].layer)
    prefix = num_tokens - num_patches if num_prefix_tokens is None else num_prefix_tokens
    if num_prefix_tokens is None and read[:num_patches].all() and not read[num_patches:].any():
        prefix = 0  # registers that follow the patches
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
        len(trace.attentions),
        _readout(read, patches, all_tokens=getattr(model, "pool_include_prefix", False)),
        bool(trace.num_pooling),
        find_parts(trace, num_tokens),
    )


def patch_grid(model: nn.Module, images: Tensor) -> tuple[int, int]:
    """Return rows and columns of patches, from the first ``patch_size`` that a module of the model has.

    Raises:
        ValueError: If no module has one, or it does not divide the images.
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
    """Return which tokens the logits read, (N,): those whose row of the last attention has a gradient."""
    last = []

    def start_graph(index: int, attn: Tensor) -> Tensor:
        if index == layer:  # a graph of the layers before it would only take memory
            torch.set_grad_enabled(True)
            last.append(attn.requires_grad_())
        return attn

    with torch.no_grad():  # restores the mode that start_graph changes
        logits = run_intercepted(model, image, start_graph)
        # A random direction, as the sum of the logits may be constant.
        direction = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)).to(logits)
        (gradient,) = torch.autograd.grad((logits * direction).sum(), last)
    return gradient.abs().sum(dim=(0, 1, 3)) > 0


def _readout(read: Tensor, patches: slice, all_tokens: bool) -> Tensor:
    if not read.any():  # a head of zeros, before training
        read = torch.arange(len(read), device=read.device) == 0
    prefix, rest = read.clone(), torch.zeros_like(read)
    prefix[patches], rest[patches] = False, read[patches]
    if all_tokens or not (prefix.any() and rest.any()):
        return read / read.sum()
    return prefix / prefix.sum() / 2 + rest / rest.sum() / 2
