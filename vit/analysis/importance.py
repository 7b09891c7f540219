"""Importance of the heads of a model.

Letters in the einops patterns: b batch, h heads, n queries, m keys, d channels of a head, c channels of a token.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from torch import Tensor, nn

from vit.analysis.batches import calls_of_layers, in_batches, labelled_batches
from vit.analysis.modules import attention_modules, head_count, with_emptied_layers
from vit.analysis.projections import head_projections
from vit.attention import MultiHeadAttention
from vit.attention.mechanisms import DifferentialAttention
from vit.capture.attention import run_intercepted
from vit.capture.experiments.graph import gradients_of
from vit.capture.interception.intercept import Edit
from vit.capture.parts.logits import check_several_classes, logits_of
from vit.support.precision import at_least_float32


def head_importance(
    model: nn.Module, images: Tensor, labels: Tensor | None = None, *, normalised: bool = False, batch_size: int = 32
) -> list[Tensor]:
    """Estimate the importance of each head by the gradient of its gate: one (H,) for each layer.

    The importance is ``E |d loss / d gate|`` over the images (Michel et al. 2019, eq. 2). The gate multiplies the
    head's attention and equals 1. One backward pass measures all heads, to first order. Two redundant heads therefore
    both get a high value or both a low one. Layers are numbered as in ``describe_heads``: attention without influence
    on the logits is none. If each attention has some, and they run in order, ``prune_heads`` uses the same numbers.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> [tuple(layer.shape) for layer in head_importance(model, torch.randn(5, 3, 32, 32))]
    [(3,), (3,)]

    Args:
        model: A ViT of any library, in eval mode.
        images: Images (B, C, H, W), normalised as the model expects.
        labels: The class of each image, (B,). None takes the predicted classes.
        normalised: Whether to divide the importances of a layer by their root sum of squares, as in the paper. The
            last head left in a layer then always has importance 1, and pruning head by head goes on elsewhere.
        batch_size: Number of images in one forward pass.

    Raises:
        ValueError: If attention cannot be captured (see ``capture_attention``), a norm follows the heads (differential
            attention), a layer has no gradient, or the numbers of images and labels differ.
    """
    for module in model.modules():
        if isinstance(module, MultiHeadAttention) and isinstance(module.mechanism, DifferentialAttention):
            raise ValueError(
                "the norm after each head of DifferentialAttention cancels any factor of its attention, so that the "
                "gradient of a gate is always zero: use ablation_importance"
            )
    totals: list[Tensor] = []
    batches, calls = _labelled(model, images, labels, batch_size), calls_of_layers(model, images, batch_size)
    for batch, targets in batches:
        slopes = _slopes(model, batch, targets, calls)
        totals = [total + slope for total, slope in zip(totals, slopes, strict=True)] if totals else slopes
    importances = [(total / len(images)).cpu() for total in totals]
    if normalised:
        importances = [F.normalize(layer, dim=0) for layer in importances]
    return with_emptied_layers(model, importances)


def ablation_importance(
    model: nn.Module,
    images: Tensor,
    labels: Tensor | None = None,
    *,
    replacement: Literal["zero", "mean"] = "zero",
    batch_size: int = 32,
) -> list[Tensor]:
    """Measure the rise of the loss without each head, in nats: one (H,) for each layer.

    ``head_importance`` estimates the same. This function takes one pass over all images per head. Replacement "zero"
    removes the whole output of the head. Replacement "mean" sets its attention to the mean over images, and so removes
    only what differs between images. If a value is negative, the loss is lower without the head. For the other
    arguments, see ``head_importance``.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> [tuple(layer.shape) for layer in ablation_importance(model, torch.randn(5, 3, 32, 32))]
    [(3,), (3,)]

    Raises:
        ValueError: If the replacement is unknown, attention cannot be captured (see ``capture_attention``), or the
            numbers of images and labels differ.
    """
    if replacement not in ("zero", "mean"):
        raise ValueError(f"unknown replacement {replacement!r}: choose 'zero' or 'mean'")
    means = mean_attention(model, images, batch_size=batch_size)
    batches, calls = list(_labelled(model, images, labels, batch_size)), calls_of_layers(model, images, batch_size)
    intact = _mean_loss(model, batches, calls, lambda _, attn: attn)

    def without(layer: int, head: int, number: int, attn: Tensor) -> Tensor:
        if number == layer:
            attn = attn.clone()
            attn[:, head] = means[layer][head] if replacement == "mean" else 0.0
        return attn

    rises = [
        torch.tensor(
            [_mean_loss(model, batches, calls, partial(without, layer, head)) - intact for head in range(len(mean))]
        )
        for layer, mean in enumerate(means)
    ]
    return with_emptied_layers(model, rises)


@torch.no_grad()
def mean_attention(model: nn.Module, images: Tensor, *, batch_size: int = 32) -> list[Tensor]:
    """Compute the mean attention over images (B, C, H, W): one (H, N, N) for each layer that has heads."""
    sums: dict[int, Tensor] = {}

    def add(layer: int, attn: Tensor) -> Tensor:
        if attn.shape[-2] > 1:
            sums[layer] = sums.get(layer, 0) + reduce(at_least_float32(attn), "b h n m -> h n m", "sum")
        return attn

    calls = calls_of_layers(model, images, batch_size)
    for batch in in_batches(model, images, batch_size):
        run_intercepted(model, batch, add, calls)
    return [total / len(images) for total in sums.values()]


@torch.no_grad()
def weight_importance(model: nn.Module) -> list[Tensor]:
    """Compute the mean absolute weight of each head's four projections: one (H,) for each layer.

    This baseline needs no images.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3)
    >>> [tuple(layer.shape) for layer in weight_importance(model)]
    [(3,), (3,)]

    Raises:
        ValueError: If the heads of an attention have no projections of their own.
    """
    layers = [head_projections(attention) for attention in attention_modules(model) if head_count(attention)]
    sizes = [[reduce(weights.abs(), "h d c -> h", "mean") for weights in layer] for layer in layers]
    return with_emptied_layers(model, [torch.stack(layer).mean(dim=0).cpu() for layer in sizes])


def _slopes(model: nn.Module, images: Tensor, labels: Tensor, calls: Sequence[int]) -> list[Tensor]:
    """Sum ``|d loss / d gate|`` over images: one (H,) for each layer."""
    gates: list[Tensor] = []

    def gate(_: int, attn: Tensor) -> Tensor:
        if attn.shape[-2] == 1:
            return attn
        # Each image has its own gate: the absolute value comes before the mean over images.
        gates.append(torch.ones_like(attn[..., 0, 0], requires_grad=True))
        return attn * rearrange(gates[-1], "b h -> b h 1 1")

    with torch.enable_grad(), gradients_of(model, "use ablation_importance"):
        logits = at_least_float32(run_intercepted(model, images, gate, calls))
        check_several_classes(logits, "importance")
        slopes = torch.autograd.grad(F.cross_entropy(logits, labels, reduction="sum"), gates)
    return [reduce(at_least_float32(slope).abs(), "b h -> h", "sum") for slope in slopes]


def _labelled(
    model: nn.Module, images: Tensor, labels: Tensor | None, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Return batches of images and labels. If there are no labels, the predicted classes take their place."""
    if labels is not None:
        return labelled_batches(model, images, labels, batch_size)
    return ((batch, _predicted(model, batch)) for batch in in_batches(model, images, batch_size))


@torch.no_grad()
def _predicted(model: nn.Module, images: Tensor) -> Tensor:
    return check_several_classes(logits_of(model(images)), "importance").argmax(dim=-1)


@torch.no_grad()
def _mean_loss(model: nn.Module, batches: list[tuple[Tensor, Tensor]], calls: Sequence[int], edit: Edit) -> float:
    logits = ((at_least_float32(run_intercepted(model, images, edit, calls)), labels) for images, labels in batches)
    losses = [
        F.cross_entropy(check_several_classes(of_batch, "importance"), labels, reduction="sum").item()
        for of_batch, labels in logits
    ]
    return sum(losses) / sum(len(images) for images, _ in batches)
