"""Copies of small tensors to a GPU that do not block the CPU."""

import torch
from torch import Tensor


def copy_async(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the CPU to a device, without blocking the CPU until the device has finished its queued work.

    A copy from pageable memory blocks; a copy from pinned memory is queued.
    """
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
