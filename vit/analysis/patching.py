"""Activation patching: parts of one image's activations are put into the pass of another, and a logit is measured.

Meng et al. (2022) patch activations; Nanda (2023) and Syed et al. (2023) estimate the effect of all patches by one
backward pass.

Letters in the einops patterns: b images, k patches that run together, c image channels, y x rows and columns of pixels,
n tokens, h heads, d channels.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Literal, get_args

import torch
from einops import rearrange, reduce, repeat
from torch import Tensor, nn

from vit.analysis.knockout import Classes, asked_logit
from vit.attention import MultiHeadAttention
from vit.capture.checks.capturable import check_capturable, check_pixels
from vit.capture.experiments.moved import differentiable
from vit.capture.parts.token_places import Boundary
from vit.model.encoder_block import EncoderBlock
from vit.model.vision_transformer import VisionTransformer
from vit.support.checks import check_choice, check_positive_int
from vit.support.precision import at_least_float32

Site = Literal["head", "attention", "mlp", "residual"]
Place = tuple[int, int]  # a layer, and a head or a token


@torch.no_grad()
def patch_activations(
    model: nn.Module,
    clean: Tensor,
    corrupted: Tensor,
    site: Site = "residual",
    target: Classes = None,
    *,
    against: Classes = None,
    places: Sequence[Place] | None = None,
    batch_size: int = 32,
) -> Tensor:
    """Replace each activation of clean images by that of corrupted ones, and measure the fall of a logit.

    A fall shows what the logit of the clean image needs. To see what suffices, exchange the two sets of images: a
    negative fall is then a rise, and shows what brings the class back.

    Every place takes a pass over the images, many in one batch: this is for small models, or a few ``places``.
    ``attribute_patches`` estimates the same by one backward pass.

    >>> model = VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> clean, corrupted = torch.randn(2, 5, 3, 32, 32)
    >>> patch_activations(model, clean, corrupted, "head").shape
    torch.Size([5, 2, 3])

    Args:
        model: A ``vit.VisionTransformer`` in eval mode.
        clean: Images (B, C, H, W), normalised as the model expects.
        corrupted: Another image for each, (B, C, H, W), such as one of another class, or the same image without a part.
        site: What is replaced: the output of a "head" before the output projection, at all tokens; the output of an
            "attention" or an "mlp" at one token; or the "residual" stream at one token, before each layer and after the
            last.
        target: The class whose logit is measured: one for all images, or one for each, (B,). None takes the classes
            that are predicted for the clean images.
        against: The class whose logit is subtracted, in the same form. None subtracts nothing.
        places: Layer and number of each head or token to replace, both from 0. None means all.
        batch_size: Number of images in one forward pass, copies included.

    Returns:
        The falls: (B, L, H) for heads, (B, L, N) for the tokens of an attention or MLP, (B, L + 1, N) for those of the
        residual stream. NaN at places that were not asked for.

    Raises:
        ValueError: If the model is of another library, was pruned or has blocks of its own, the images do not pair, or
            there is no such class or place.
    """
    measure = _prepared(model, clean, corrupted, site, target, against, batch_size)
    device = next(model.parameters()).device
    fallen: list[Tensor] = []
    for first in range(0, len(clean), batch_size):
        part = slice(first, first + batch_size)
        batch = clean[part].to(device)
        logits, activations = _activations(model, batch, site)
        intact = measure(logits, first)
        _, replacing = _activations(model, corrupted[part].to(device), site)
        units = _by_unit(site, activations[0], model).shape[2]
        falls = torch.full((len(batch), len(activations), units), torch.nan, dtype=intact.dtype)
        wanted = _checked_places(places, len(activations), units, site)
        together = max(1, batch_size // len(batch))
        for start in range(0, len(wanted), together):
            chosen = wanted[start : start + together]
            with ExitStack() as stack:
                for layer in sorted({layer for layer, _ in chosen}):
                    change = _replacement(model, site, layer, replacing[layer], chosen)
                    stack.enter_context(_boundaries(model, site)[layer].changed(change))
                logits = model(repeat(batch, "b c y x -> (k b) c y x", k=len(chosen)))
            for (layer, unit), patched in zip(chosen, logits.chunk(len(chosen)), strict=True):
                falls[:, layer, unit] = (intact - measure(patched, first)).cpu()
        fallen.append(falls)
    return torch.cat(fallen)


def attribute_patches(
    model: nn.Module,
    clean: Tensor,
    corrupted: Tensor,
    site: Site = "residual",
    target: Classes = None,
    *,
    against: Classes = None,
    batch_size: int = 32,
) -> Tensor:
    """Estimate ``patch_activations`` for all places by one backward pass: the result has the same shape.

    The estimate is the gradient of the logit with respect to the activations of the clean images, times the difference
    of the activations. It is right to first order. ``rank_correlation`` says how near it comes to the patches
    themselves.

    >>> from vit.analysis import rank_correlation
    >>> model = VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> clean, corrupted = torch.randn(2, 5, 3, 32, 32)
    >>> quick, exhaustive = (
    ...     function(model, clean, corrupted, "mlp") for function in (attribute_patches, patch_activations)
    ... )
    >>> rank_correlation(quick.flatten(1), exhaustive.flatten(1)).shape  # one for each image
    torch.Size([5])
    """
    measure = _prepared(model, clean, corrupted, site, target, against, batch_size)
    device = next(model.parameters()).device
    batches = []
    for first in range(0, len(clean), batch_size):
        part = slice(first, first + batch_size)
        with torch.no_grad():
            _, replacing = _activations(model, corrupted[part].to(device), site)
        with torch.inference_mode(False), torch.enable_grad():
            batch = differentiable(clean[part].to(device)).detach().requires_grad_()
            logits, activations = _activations(model, batch, site)
            slopes = torch.autograd.grad(measure(logits, first).sum(), activations)
        layers = zip(slopes, activations, replacing, strict=True)
        falls = [_by_unit(site, slope * (own.detach() - other), model) for slope, own, other in layers]
        batches.append(torch.stack([reduce(fall, "b n u d -> b u", "sum") for fall in falls], dim=1).cpu())
    return torch.cat(batches)


def _by_unit(site: Site, tokens: Tensor, model: VisionTransformer) -> Tensor:
    """Split activations into units: heads, (B, N, H, d), or tokens, (B, 1, N, D)."""
    if site == "head":
        return rearrange(at_least_float32(tokens), "b n (h d) -> b n h d", h=model.blocks[0].attn.num_heads)
    return rearrange(at_least_float32(tokens), "b n d -> b 1 n d")


def _boundaries(model: VisionTransformer, site: Site) -> list[Boundary]:
    if site == "head":
        return [Boundary(block.attn.proj, "input") for block in model.blocks]
    if site == "residual":
        return [*(Boundary(block, "input") for block in model.blocks), Boundary(model.norm, "input")]
    return [Boundary(block.attn if site == "attention" else block.mlp, "output") for block in model.blocks]


def _activations(model: VisionTransformer, images: Tensor, site: Site) -> tuple[Tensor, list[Tensor]]:
    """Return the logits and the activations of each layer."""
    seen: list[Tensor] = []
    with ExitStack() as stack:
        for boundary in _boundaries(model, site):
            stack.enter_context(boundary.seen(seen.append))
        return model(images), seen


def _replacement(
    model: VisionTransformer, site: Site, layer: int, other: Tensor, chosen: Sequence[Place]
) -> Callable[[Tensor], Tensor]:
    """Return a function that replaces each chosen unit of this layer in its own copy of the images."""

    def change(tokens: Tensor) -> Tensor:
        copies = list(tokens.chunk(len(chosen)))
        for index, (of, unit) in enumerate(chosen):
            if of == layer:
                changed = copies[index].clone()
                if site == "head":
                    width = changed.shape[-1] // model.blocks[layer].attn.num_heads
                    part = slice(unit * width, (unit + 1) * width)
                    changed[..., part] = other[..., part]
                else:
                    changed[:, unit] = other[:, unit]
                copies[index] = changed
        return torch.cat(copies)

    return change


def _checked_places(places: Sequence[Place] | None, layers: int, units: int, site: Site) -> list[Place]:
    every = [(layer, unit) for layer in range(layers) for unit in range(units)]
    if places is None:
        return every
    if unknown := [place for place in places if tuple(place) not in every]:
        unit = "head" if site == "head" else "token"
        raise ValueError(
            f"there is no layer and {unit} {tuple(unknown[0])}: layers are 0 to {layers - 1}, {unit}s 0 to {units - 1}"
        )
    return [(layer, unit) for layer, unit in places]


def _prepared(
    model: nn.Module, clean: Tensor, corrupted: Tensor, site: Site, target: Classes, against: Classes, batch_size: int
) -> Callable[[Tensor, int], Tensor]:
    """Check the inputs, and return the function that measures the logit (see ``asked_logit``)."""
    check_choice("site", site, get_args(Site))
    check_positive_int("batch_size", batch_size)
    if not isinstance(model, VisionTransformer) or not all(isinstance(block, EncoderBlock) for block in model.blocks):
        raise ValueError(
            f"{type(model).__module__}.{type(model).__name__} is not made of the blocks of this package, so where its "
            "activations are is not known: give a vit.VisionTransformer (vit.load reads weights of other libraries), "
            "or cut its attention by vit.analysis.knockout"
        )
    heads = [block.attn.num_heads for block in model.blocks]
    if len({*heads}) > 1 or not all(isinstance(block.attn, MultiHeadAttention) for block in model.blocks):
        raise ValueError(f"layers have {heads} heads: give the model before pruning")
    check_capturable(model)
    check_pixels(clean)
    if clean.shape != corrupted.shape:
        raise ValueError(
            f"clean images have shape {tuple(clean.shape)} and corrupted ones {tuple(corrupted.shape)}: give one "
            "corrupted image for each"
        )
    return asked_logit(model, clean, target, against, batch_size)
