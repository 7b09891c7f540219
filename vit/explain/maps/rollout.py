"""Attention rollout: attention multiplied through the layers (Abnar and Zuidema 2020).

Letters in the einops patterns: b batch, h heads, n queries, m keys, l tokens of the layer below,
r s rows and columns of patches.
"""

import warnings
from collections.abc import Sequence
from numbers import Real
from typing import Literal

import torch
from einops import einsum, rearrange, reduce, repeat
from torch import Tensor

from vit.capture.anatomy import Anatomy
from vit.support.precision import at_least_float32, widest_type

HeadFusion = Literal["mean", "max", "min"]


def attention_rollout(
    attentions: Sequence[Tensor],
    head_fusion: HeadFusion = "mean",
    discard_ratio: float = 0.0,
    residual: float = 0.5,
    start_layer: int = 0,
) -> Tensor:
    """Compute how much of each input token reaches each output token: a list of (B, H, N, N) -> (B, N, N).

    ``R = A_L ... A_2 A_1`` with ``A_l = (1 - residual) * fused attention of layer l + residual * I``. The rows of each
    A_l are divided by their sum, so the rows of R sum to one too. Later layers stand on the left: they mix what earlier
    layers mixed. Values, MLPs and classes have no influence (Abnar and Zuidema 2020, sec. 3.1, with a residual of 1/2).
    A fused weight below zero counts as zero, since a share of a token cannot be negative: talking heads, differential
    attention and convolution have such weights. A warning says so, because what they take away is not in the result.

    >>> half, other = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]]), torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])
    >>> attention_rollout([half, other], residual=0.0)  # both attend to token 1, which attended to both
    tensor([[[0.5000, 0.5000],
             [0.5000, 0.5000]]])

    Args:
        attentions: Attention of each layer, first layer first. If the last one has a single query (attention pooling),
            it gets no residual, and the result is one row (B, 1, N).
        head_fusion: How heads are fused: their mean, as in the paper, or the largest or smallest weight.
        discard_ratio: Share of an image's N x N fused weights that each layer sets to zero, smallest first.
        residual: Weight of the skip connection, from 0 to 1.
        start_layer: First layer to use; earlier layers count as the identity.

    Raises:
        ValueError: If an argument is out of range.
    """
    check_rollout(head_fusion, discard_ratio, residual)
    check_attentions(attentions)
    check_start_layer(start_layer, len(attentions))
    rolled = None
    for attn in attentions[start_layer:]:
        rolled = roll(rolled, attn, head_fusion, discard_ratio, residual)
    return rolled


def roll(rolled: Tensor | None, attn: Tensor, head_fusion: HeadFusion, discard_ratio: float, residual: float) -> Tensor:
    """Multiply a rollout by one more layer: (B, N, N) or None, (B, H, N, N) -> (B, N, N)."""
    mixing = fuse_heads(attn, head_fusion)
    if discard_ratio:
        mixing = _discard_smallest(mixing, discard_ratio)
    if mixing.shape[-2] > 1:
        mixing = with_residual(mixing, residual)
    else:
        mixing = pad_prefix(mixing / reduce(mixing, "b n m -> b n 1", "sum"), rolled)
    if rolled is None:
        return mixing
    widest = widest_type(mixing, rolled)
    return einsum(mixing.to(widest), rolled.to(widest), "b n m, b m l -> b n l")


def fuse_heads(attn: Tensor, head_fusion: HeadFusion = "mean") -> Tensor:
    """Return the mean, largest or smallest weight of the heads, negative ones as zero: (B, H, N, M) -> (B, N, M)."""
    fused = at_least_float32(reduce(attn.detach(), "b h n m -> b n m", head_fusion))
    if (fused < 0).any():
        warnings.warn(
            "attention has negative weights (as of talking heads, differential attention and convolution), which count "
            "as zero in a rollout or a flow: gradient_rollout, relevance and occlusion read their sign",
            stacklevel=2,
        )
    return fused.clamp(min=0)


def with_residual(mixing: Tensor, residual: float) -> Tensor:
    """Return ``(1 - residual) mixing + residual I`` with rows that sum to one: (B, N, N) -> (B, N, N)."""
    identity = torch.eye(mixing.shape[-1], dtype=mixing.dtype, device=mixing.device)
    mixed = (1 - residual) * mixing + residual * identity
    total = reduce(mixed, "b n m -> b n 1", "sum")
    # A token whose weights are all discarded keeps its own value.
    return torch.where(total == 0, identity, mixed / total.clamp(min=torch.finfo(mixed.dtype).tiny))


def pad_prefix(row: Tensor, tokens: Tensor | None) -> Tensor:
    """Add zeros for the prefix tokens that attention pooling leaves out: (B, 1, M) -> (B, 1, N)."""
    missing = 0 if tokens is None else tokens.shape[-2] - row.shape[-1]
    return torch.nn.functional.pad(row, (missing, 0))


def readout_map(anatomy: Anatomy, mixing: Tensor, readout: Tensor | None = None) -> Tensor:
    """Return the patches in the row of the read-out tokens: (B, N, M) -> (B, rows, columns).

    With attention pooling, there is one row: (B, 1, M). It may leave out the prefix.

    Args:
        anatomy: The parts of the model.
        mixing: How much of each token is in each other one.
        readout: Share of each token in the logits of each image, (B, N); None takes that of the anatomy for all.
    """
    if mixing.shape[1] == 1:
        row = mixing[:, 0]
    else:
        readout = repeat(anatomy.readout, "n -> b n", b=len(mixing)) if readout is None else readout
        row = einsum(readout.to(mixing), mixing, "b n, b n m -> b m")
    row = torch.nn.functional.pad(row, (anatomy.num_tokens - row.shape[-1], 0))
    return rearrange(row[:, anatomy.patches], "b (r s) -> b r s", r=anatomy.grid[0])


def check_rollout(head_fusion: str, discard_ratio: float, residual: float) -> None:
    """Raise a ValueError if an argument of a rollout is out of range."""
    if head_fusion not in ("mean", "max", "min"):
        raise ValueError(f"unknown head_fusion {head_fusion!r}: choose 'mean', 'max' or 'min'")
    if not isinstance(discard_ratio, Real) or not 0 <= discard_ratio < 1:
        raise ValueError(
            f"discard_ratio ({discard_ratio}) must be at least 0 and less than 1: it is a share of weights"
        )
    if not isinstance(residual, Real) or not 0 <= residual <= 1:
        raise ValueError(f"residual ({residual}) must be from 0 (attention only) to 1 (no attention)")


def check_attentions(attentions: Sequence[Tensor]) -> None:
    """Raise a ValueError if attentions are not of all tokens to all tokens, but for a last one of a single query."""
    if not len(attentions):
        raise ValueError("there is no attention: give that of at least one layer, as of capture_attention")
    batch, num_tokens = len(attentions[0]), attentions[0].shape[-1]
    for layer, attn in enumerate(attentions):
        pools = layer == len(attentions) - 1 and attn.ndim == 4 and attn.shape[-2] == 1
        if attn.ndim != 4 or len(attn) != batch or (not pools and attn.shape[-2:] != (num_tokens, num_tokens)):
            raise ValueError(
                f"the attention of layer {layer} has shape {tuple(attn.shape)}: give (images, heads, tokens, tokens), "
                f"of {batch} images and {num_tokens} tokens as layer 0; only a last one may have a single query"
            )
        if not attn.isfinite().all():
            raise ValueError(f"the attention of layer {layer} contains NaN or infinity: look at the logits before it")


def check_layer(layer: int, depth: int) -> None:
    """Raise a ValueError if there is no such layer; negative indices count from the end."""
    if layer not in range(-depth, depth) or isinstance(layer, bool | float):
        raise ValueError(f"layer ({layer}) must be one of {depth} layers, from {-depth} to {depth - 1}")


def check_start_layer(start_layer: int, depth: int) -> None:
    """Raise a ValueError if there is no such layer."""
    if start_layer not in range(depth) or isinstance(start_layer, bool | float):
        raise ValueError(f"start_layer ({start_layer}) must be one of the {depth} layers, from 0 to {depth - 1}")


def _discard_smallest(mixing: Tensor, ratio: float) -> Tensor:
    flat = rearrange(mixing, "b n m -> b (n m)")
    count = int(ratio * flat.shape[-1] + 1e-6)  # 0.29 times 100 is 28.999... in floating point
    smallest = flat.argsort(dim=-1)[:, :count]
    return rearrange(flat.scatter(-1, smallest, 0.0), "b (n m) -> b n m", n=mixing.shape[-2])
