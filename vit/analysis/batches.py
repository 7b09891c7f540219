"""Batches of images on the device of a model."""

from collections.abc import Iterator

from torch import Tensor, nn


def in_batches(model: nn.Module, tensors: Tensor, batch_size: int) -> Iterator[Tensor]:
    """Split images or labels (B, ...) into batches, and move each batch to the device of the model.

    Raises:
        ValueError: If there are no images.
    """
    if not len(tensors):
        raise ValueError("there are no images (0): give at least one")
    device = next(model.parameters()).device
    for batch in tensors.split(batch_size):
        yield batch.to(device)
