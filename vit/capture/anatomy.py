"""Finds the parts of a ViT: its grid of patches, its layers, and the tokens that its logits are computed from."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vit.capture.attention import (
    check_capturable,
    check_logits_unchanged,
    check_pixels,
    differentiable,
    run_intercepted,
)
from vit.capture.dependence import check_in_a_row
from vit.capture.graph import FollowValues
from vit.capture.logits import result_of
from vit.capture.mixing import check_unmixed
from vit.capture.patches import Layout, find_patches
from vit.capture.places import check_places, no_patches
from vit.capture.trace import Parts, find_parts, trace_forward


@dataclass(frozen=True)
class Anatomy:
    """The parts of a ViT.

    Attributes:
        grid: Rows and columns of patches.
        num_prefix_tokens: Tokens before the patches: class token, distillation token, registers.
        num_tokens: Number of all tokens of an image.
        calls: Numbers of the attention calls that influence the logits. All other calls are left out.
        depth: Number of layers. A last attention with one query, which pools the tokens, is not counted.
        pooled: Whether an attention with one query pools the tokens after the last layer.
        parts: The layers, and the places just before and after them.
        fixed_readout: ``readout``, or None if the logits read different tokens for different images.
        model: Name of the model's class.
    """

    grid: tuple[int, int]
    num_prefix_tokens: int
    num_tokens: int
    calls: tuple[int, ...]
    depth: int
    pooled: bool
    parts: Parts
    fixed_readout: Tensor | None
    model: str

    @property
    def patches(self) -> slice:
        """The positions of the patches among the tokens."""
        return slice(self.num_prefix_tokens, self.num_prefix_tokens + self.grid[0] * self.grid[1])

    @property
    def readout(self) -> Tensor:
        """Share of each token in the features that the logits are computed from, (N,). The shares sum to one.

        A class token has share 1. Each of N averaged tokens has share 1 / N. If class token and mean are concatenated
        ("cls+mean"), each counts half. The tokens with a share are the read-out tokens.

        Raises:
            ValueError: If the logits read different tokens for different images, as a maximum over tokens does.
        """
        if self.fixed_readout is None:
            raise ValueError(
                f"{self.model} reads other tokens for each image, as a maximum over tokens does, so no row of its "
                "attention is read out: choose occlusion, token_drop, input_gradient, integrated_gradients or "
                "smoothgrad"
            )
        return self.fixed_readout


@torch.inference_mode(False)  # a gradient finds the read-out tokens, even if the caller is in inference mode
def examine(
    model: nn.Module, images: Tensor, grid: tuple[int, int] | None = None, num_prefix_tokens: int | None = None
) -> Anatomy:
    """Find the parts of a model, and check that its attention can be captured. Only the first two images are used.

    ``find_patches`` finds by experiment which token is which patch. A given grid or number must agree.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> examine(model, torch.randn(1, 3, 32, 32)).patches
    slice(1, 17, None)

    Args:
        model: A ViT in eval mode.
        images: Images as the model takes them, (B, C, H, W).
        grid: Rows and columns of patches, checked against those found; None skips the check.
        num_prefix_tokens: Tokens before the patches, checked against those found; None skips the check.

    Raises:
        ValueError: If attention cannot be captured (see ``capture_attention``), attentions run in parallel instead of
            one after another, no grid of patches is found among the tokens, or the given grid or number is wrong.
    """
    check_pixels(images)
    check_capturable(model)
    name = type(model).__name__
    image = differentiable(images[:1])
    pair = torch.cat([image, differentiable(images[1:2]) if len(images) > 1 else image.flip(-1)])
    trace, logits = trace_forward(model, pair)
    with torch.no_grad():
        check_logits_unchanged(logits, result_of(model(pair)))
    if not trace.attentions or len(trace.pooling) > 1:
        raise ValueError(
            f"{name} has {len(trace.attentions)} attentions of all tokens and {len(trace.pooling)} of one query that "
            "its logits depend on: at least one of all tokens is needed, and only a single, last one of one query is "
            "followed"
        )
    calls = tuple(event.call for event in (*trace.attentions, *trace.pooling))
    check_in_a_row(model, calls, trace.dependents)
    check_places(model, image, calls[0])
    num_tokens = trace.attentions[0].shape[-1]
    layout = _layout(model, image, trace.attentions[0].call, num_tokens, grid, num_prefix_tokens)
    check_unmixed(model, image, calls, num_tokens)
    anatomy = Anatomy(
        layout.grid,
        layout.first,
        num_tokens,
        calls,
        len(trace.attentions),
        bool(trace.pooling),
        find_parts(trace, num_tokens),
        None,
        name,
    )
    read = _tokens_read(model, pair, trace.attentions[-1].call)
    if trace.takes_maximum or not (read == read[0]).all():
        return anatomy
    all_tokens = getattr(model, "pool_include_prefix", False)
    return replace(anatomy, fixed_readout=_readout(read[0], anatomy.patches, all_tokens))


def _layout(
    model: nn.Module,
    image: Tensor,
    call: int,
    num_tokens: int,
    grid: tuple[int, int] | None,
    num_prefix_tokens: int | None,
) -> Layout:
    """Find by experiment where the patches are. Raise a ValueError if ``grid`` or ``num_prefix_tokens`` disagrees."""
    found, name = find_patches(model, image, call, num_tokens), type(model).__name__
    if found is None:
        raise no_patches(model, num_tokens)
    given = Layout(tuple(grid or found.grid), found.first if num_prefix_tokens is None else num_prefix_tokens)
    if given != found:
        raise ValueError(
            f"{name} was said to have {given.first} prefix tokens and {given.grid[0]} x {given.grid[1]} patches, but "
            f"changed strips of an image move {found.grid[0]} x {found.grid[1]} patches after {found.first} tokens: "
            "leave out grid and num_prefix_tokens"
        )
    return found


def patch_grid(model: nn.Module, images: Tensor) -> tuple[int, int]:
    """Return rows and columns of patches, from the first module that has a ``patch_stride`` or ``patch_size``.

    Raises:
        ValueError: If no module has either, or the size does not divide the images.
    """
    for module in model.modules():
        size = getattr(module, "patch_stride", None) or getattr(module, "patch_size", None)
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


def _tokens_read(model: nn.Module, images: Tensor, call: int) -> Tensor:
    """Return which tokens the logits read, (B, N). A token is read if its row of the last attention has a gradient."""
    last = []

    def start_graph(index: int, attn: Tensor) -> Tensor:
        if index == call:
            last.append(attn.requires_grad_())
        return attn

    with torch.no_grad(), FollowValues():  # the layers before it need no graph, which saves memory
        logits = run_intercepted(model, images, start_graph)
    # The direction is random because the sum of the logits may be constant.
    direction = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)).to(logits)
    gradient = None
    if logits.requires_grad:
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad((logits * direction).sum(), last, allow_unused=True)
    if gradient is None:
        raise ValueError(
            f"the logits of {type(model).__name__} have no gradient, as of quantised layers, so which tokens they read "
            "is not known: explain the model before it was quantised, or read its weights by capture_attention"
        )
    return gradient.abs().sum(dim=(1, 3)) > 0


def _readout(read: Tensor, patches: slice, all_tokens: bool) -> Tensor:
    if not read.any():  # an untrained head of zeros gives no gradient: take the first token
        read = torch.arange(len(read), device=read.device) == 0
    prefix, rest = read.clone(), torch.zeros_like(read)
    prefix[patches], rest[patches] = False, read[patches]
    if all_tokens or not (prefix.any() and rest.any()):
        return read / read.sum()
    return prefix / prefix.sum() / 2 + rest / rest.sum() / 2
