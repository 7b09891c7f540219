"""Images in batches, on the device of a model, and what is summed over them."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn


def in_batches(model: nn.Module, tensors: Tensor, batch_size: int) -> Iterator[Tensor]:
    """Split images or labels (B, ...) into batches, each on the device of the model."""
    if not len(tensors):
        raise ValueError("there are no images (0): give at least one")
    device = next(model.parameters()).device
    for batch in tensors.split(batch_size):
        yield batch.to(device)


def in_float32(x: Tensor) -> Tensor:
    """The same numbers, in float32 if their type is coarser: a sum of many in bfloat16 stops to grow."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
