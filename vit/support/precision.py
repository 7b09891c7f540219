"""Types of floats that sums and distances need: at least float32, or float64, which Apple's GPUs do not have."""

import functools

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Convert to float32 or wider, for sums of many terms.

    >>> at_least_float32(torch.ones(1, dtype=torch.bfloat16)).dtype, at_least_float32(torch.ones(1).double()).dtype
    (torch.float32, torch.float64)
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def widest_type(*tensors: Tensor) -> torch.dtype:
    """Return the type of floats that holds all tensors, float32 or wider. Layers may have attention of different types.

    >>> widest_type(torch.ones(1, dtype=torch.bfloat16)), widest_type(torch.ones(1), torch.ones(1).double())
    (torch.float32, torch.float64)
    """
    return functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)


def in_double(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, on its device, or on the CPU if the device has no such numbers.

    >>> in_double(torch.ones(2, dtype=torch.bool))
    tensor([1., 1.], dtype=torch.float64)
    """
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).to(torch.float64)


def most_precise(device: torch.device) -> torch.dtype:
    """Return the most precise type of floats that a device has.

    >>> most_precise(torch.device("cpu")), most_precise(torch.device("mps"))
    (torch.float64, torch.float32)
    """
    return torch.float32 if device.type == "mps" else torch.float64
