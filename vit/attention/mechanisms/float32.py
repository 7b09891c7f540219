"""Runs a mechanism in float32 or wider: sums over many tokens, and exponentials, need it."""

from collections.abc import Callable

import torch
from torch import Tensor

from vit.attention.qkv_checks import check_are_last, check_qkv
from vit.support.precision import at_least_float32


def in_float32(attend: Callable[[Tensor, Tensor, Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend in float32 or wider, under autocast as well, and round the output to the type of the values."""
    check_qkv(q, k, v)
    with torch.autocast(q.device.type, enabled=False):
        return attend(*map(at_least_float32, (q, k, v))).to(v.dtype)


def advance_in_float32(
    advance: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]], q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute causal attention and its state in float32 or wider, and round the output to the type of the values.

    Raises:
        ValueError: If the inputs do not fit together, or there are more queries than keys.
    """
    check_qkv(q, k, v)
    check_are_last(q, k)
    with torch.autocast(q.device.type, enabled=False):
        output, state = advance(*map(at_least_float32, (q, k, v)))
    return output.to(v.dtype), state
