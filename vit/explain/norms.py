"""Norms in two steps: their scale, and what remains linear once the scale is held constant."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Norm:
    """One call of a norm: ``(x - mean) * scale * weight + bias``, without the mean for RMSNorm."""

    input: Tensor
    axes: int  # how many of the last axes are normalised together
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    is_centred: bool

    def scale(self) -> Tensor:
        """Return the factor ``1 / sqrt(variance + eps)``, with axes of length 1 in place of those normalised."""
        return (self._centred().square().mean(self._dims(), keepdim=True) + self.eps).rsqrt()

    def output(self, scale: Tensor) -> Tensor:
        """Return the output of the norm for a given scale."""
        output = self._centred() * scale
        output = output if self.weight is None else output * self.weight
        return output if self.bias is None else output + self.bias

    def _dims(self) -> tuple[int, ...]:
        return tuple(range(-self.axes, 0))

    def _centred(self) -> Tensor:
        return self.input - self.input.mean(self._dims(), keepdim=True) if self.is_centred else self.input


def _layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Norm:
    return Norm(input, len(normalized_shape), weight, bias, eps, is_centred=True)


def _rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Norm:
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    return Norm(input, len(normalized_shape), weight, None, eps, is_centred=False)


# For each function of torch, what makes a Norm from its arguments.
NORMS: dict[Callable[..., Any], Callable[..., Norm]] = {
    F.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    torch.rms_norm: _rms_norm,
}
