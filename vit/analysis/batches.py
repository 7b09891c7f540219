"""Batches of images on the device of a model."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from vit.capture.attention import influential_calls
from vit.capture.interception.head_order import intercept


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


def calls_of_layers(model: nn.Module, images: Tensor, batch_size: int) -> list[int]:
    """Return the numbers of the attention calls that influence the logits, as the first image shows.

    Raises:
        ValueError: If there are no images, attention cannot be captured, or a batch has another number of attentions
            than the first image, as if some images leave the model early.
    """
    first = next(in_batches(model, images, 1))
    calls, of_first = influential_calls(model, first), _count_calls(model, first)
    for batch in in_batches(model, images, batch_size):
        if (found := _count_calls(model, batch)) != of_first:
            raise ValueError(
                f"{type(model).__name__} has {found} attentions for a batch of {len(batch)} images and {of_first} for "
                "the first image: some images leave it early, so layer n is not the same for all: analyse images that "
                "pass all layers"
            )
    return calls


@torch.no_grad()
def _count_calls(model: nn.Module, images: Tensor) -> int:
    made: list[int] = []

    def count(call: int, attn: Tensor) -> Tensor:
        made.append(call)
        return attn

    with intercept(model, images, count):
        model(images)
    return len(made)


def check_labels(labels: Tensor) -> None:
    """Check that labels are a class for each image, (B,): others would be compared with every prediction.

    Raises:
        ValueError: If they are not.
    """
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"labels are {labels.dtype} of shape {tuple(labels.shape)}: give a whole number for each image, (B,)"
        )
    if missing := int((labels < 0).sum()):
        raise ValueError(f"{missing} images have no class (a label below 0): leave them out")


def labelled_batches(
    model: nn.Module, images: Tensor, labels: Tensor, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Split images and their labels into batches, as ``in_batches`` does.

    Raises:
        ValueError: If there are no images, or the numbers of images and labels differ.
    """
    if len(images) != len(labels):
        raise ValueError(f"{len(images)} images have {len(labels)} labels: give one label for each image")
    check_labels(labels)
    return zip(in_batches(model, images, batch_size), in_batches(model, labels, batch_size), strict=True)
