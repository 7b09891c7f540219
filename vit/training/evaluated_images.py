"""Which images of the data set the batches of an evaluation hold, and which images only fill a batch up."""

from typing import Any

import torch
from lightning import Trainer
from torch import Tensor
from torch.utils.data import DistributedSampler

from vit.data.sampler import BatchSampler

PADDING = -1  # index and label of a row that fills a batch up


def places_of_images(loader: Any) -> list[Tensor]:
    """Return the place of each image in the data set, (B,) for each batch of a loader; [] if it is not known.

    It is known for our sampler, which yields the same batches in each evaluation, and for Lightning's sampler for
    several processes. That one repeats the first images so that all processes have equally many: these are padding.
    """
    batches = getattr(loader, "batch_sampler", None)
    if isinstance(batches, BatchSampler):
        return [*batches]
    sampler = getattr(batches, "sampler", None)
    if not isinstance(sampler, DistributedSampler) or sampler.shuffle:
        return []
    places, seen = [], 0
    for batch in batches:
        order = sampler.rank + sampler.num_replicas * torch.arange(seen, seen + len(batch))
        places.append(torch.tensor(batch).where(order < len(sampler.dataset), PADDING))
        seen += len(batch)
    return places


def places_in_evaluation(trainer: Trainer) -> list[Tensor]:
    """Return ``places_of_images`` of the loader of the validation or test that runs."""
    return places_of_images(trainer.test_dataloaders if trainer.testing else trainer.val_dataloaders)


def is_of_data(place: Tensor | None, images: Tensor) -> Tensor:
    """Return which images of a batch are not padding, boolean (B,); all if their places are not known.

    Labels do not tell: an image without a label may have the label -1, as padding has.
    """
    return images.new_ones(len(images), dtype=torch.bool) if place is None else (place != PADDING).to(images.device)
