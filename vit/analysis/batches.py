"""Batches of images on the device of a model, and the precision of sums over them."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn


def in_batches(model: nn.Module, tensors: Tensor, batch_size: int) -> Iterator[Tensor]:
    """Split images or labels (B, ...) into batches, each on the device of the model.

    Raises:
        ValueError: If there are none.
    """
    if not len(tensors):
        raise ValueError("there are no images (0): give at least one")
    device = next(model.parameters()).device
    for batch in tensors.split(batch_size):
        yield batch.to(device)


def in_float32(x: Tensor) -> Tensor:
    """Convert a tensor to float32 if its type is coarser: a sum of many numbers in bfloat16 stops growing."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
