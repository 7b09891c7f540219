"""Masks of attention, and the softmax over the keys that they leave.

Letters of shapes: B batch, H heads, N queries, M keys.
"""

import torch
from torch import Tensor


def causal_mask(n: int, m: int, device: torch.device | None = None) -> Tensor:
    """Return the boolean causal mask (n, m): the last n of m positions attend to themselves and all before.

    >>> causal_mask(2, 4).int()
    tensor([[1, 1, 1, 0],
            [1, 1, 1, 1]], dtype=torch.int32)
    """
    return torch.ones(n, m, dtype=torch.bool, device=device).tril(m - n)


def padding_mask(lengths: Tensor, m: int) -> Tensor:
    """Return the boolean mask of the keys that are not padding, for sequences of these lengths: (B,) -> (B, 1, 1, m).

    Combine it with other boolean masks by ``&``.

    >>> padding_mask(torch.tensor([1, 3]), 3).squeeze().int()
    tensor([[1, 0, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return torch.arange(m, device=lengths.device) < lengths[:, None, None, None]


def join_masks(mask: Tensor | None, causal: bool, n: int, m: int, device: torch.device) -> Tensor | None:
    """Combine ``mask`` and the causal mask into one; None means that every query attends to every key."""
    # A single query is the last position, which attends to all keys.
    if not causal or n == 1:
        return mask
    past = causal_mask(n, m, device)
    if mask is None:
        return past
    return mask & past if mask.dtype == torch.bool else mask.masked_fill(~past, -torch.inf)


def check_mask(mask: Tensor, logits_shape: tuple[int, ...], device: torch.device) -> None:
    """Raise a ValueError if a mask does not broadcast to logits of this shape."""
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(
            f"the mask is {mask.dtype}: make it boolean, True where a query may attend (mask.bool()), "
            "or a float that is added to the logits"
        )
    if mask.device != device:
        raise ValueError(f"the mask is on {mask.device}, the tokens on {device}: move it with .to(device)")
    sizes = zip(reversed(mask.shape), reversed(logits_shape), strict=False)
    if mask.ndim not in (2, 4) or any(ours not in (1, theirs) for ours, theirs in sizes):
        raise ValueError(
            f"a mask of shape {tuple(mask.shape)} does not fit attention of shape {tuple(logits_shape)} (batch, heads, "
            "queries, keys): each of its axes must be as long or 1, and it has 4 axes, or 2 for (queries, keys)"
        )


def softmax_mask(mask: Tensor | None, causal: bool, shape: tuple[int, ...], device: torch.device) -> Tensor | None:
    """Check a mask for logits of this shape, and combine it with the causal mask as the softmax needs it.

    A number that all keys of a query share changes no softmax, so the largest number that a query sees becomes 0. With
    -1e9, as for a query of padding, float32 would have no digits left for the logits, and the gradients of torch's
    fused kernels would be wrong.
    """
    if mask is not None:
        check_mask(mask, shape, device)
    mask = join_masks(mask, causal, *shape[-2:], device)
    if mask is None or mask.dtype == torch.bool or not shape[-1]:
        return mask
    return mask - mask.detach().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(mask.dtype).min)


def mask_logits(logits: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """Set masked logits to minus infinity, or add the additive mask: (B, H, N, M) -> (B, H, N, M)."""
    if mask is not None:
        check_mask(mask, logits.shape, logits.device)
    mask = join_masks(mask, causal, *logits.shape[-2:], logits.device)
    if mask is None:
        return logits
    return logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask.to(logits.dtype)


def softmax_or_zeros(logits: Tensor) -> Tensor:
    """Compute the softmax, zero in rows whose logits are all minus infinity: (B, H, N, M) -> (B, H, N, M).

    The plain softmax is NaN there, forward and backward. Such rows occur in padded batches.
    """
    all_masked = (logits == -torch.inf).all(dim=-1, keepdim=True)
    return logits.masked_fill(all_masked, 0.0).softmax(dim=-1).masked_fill(all_masked, 0.0)


def masked_softmax(logits: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """Compute the softmax over the unmasked keys: (B, H, N, M) -> (B, H, N, M); zeros if all keys are masked."""
    if mask is None and not causal:
        return logits.softmax(dim=-1)
    return softmax_or_zeros(mask_logits(logits, softmax_mask(mask, causal, logits.shape, logits.device)))
