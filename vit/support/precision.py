"""Double precision, which Apple's GPUs do not have."""

import torch
from torch import Tensor


def in_double(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, on its device, or on the CPU where the device has no such numbers.

    >>> in_double(torch.ones(2, dtype=torch.bool))
    tensor([1., 1.], dtype=torch.float64)
    """
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).to(torch.float64)
