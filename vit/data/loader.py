"""Loaders of whole batches: from an array in memory, or decoded from files by worker processes.

Both yield ``(images, labels)`` on the training device: uint8 or float images (B, C, H, W) with values in
[0, 255] or [0, 1], and labels (B,) or soft targets (B, classes). A label of -1 marks a row that only fills
the batch up.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from vit.data.augment import Augment
from vit.data.files import ImageFiles, collate_readable
from vit.data.sampler import BatchSampler
from vit.data.transfer import without_waiting

Item = TypeVar("Item")

# Batches of small images are augmented together, up to so many of so many pixels in all: the kernels for a single one
# take less time than their launches. Another number changes what is drawn for each image.
MOST_BATCHES, MOST_PIXELS = 16, 2**21


class BatchLoader(ABC):
    """What the two loaders share: augmentation on the device, and a position to resume from.

    What is done to images by themselves is done to a group of batches at a time, mixing to each batch when it is asked
    for. The random choices are a function of the seed, the epoch, the process, and the place of the group and batch.

    Args:
        sampler: Which images form each batch.
        augment: What is done to the images of a training batch; None leaves them as they are.
        device: Where the batches are needed.
        image_size: Rows and columns of an image.
    """

    def __init__(
        self, sampler: BatchSampler, augment: Augment | None, device: torch.device, image_size: tuple[int, int]
    ) -> None:
        # Lightning finds the sampler under these two names, and tells it the epoch.
        self.sampler = self.batch_sampler = sampler
        self.augment = augment
        self.device = device
        together = MOST_PIXELS // (sampler.batch_size * math.prod(image_size))
        self.group_size = 1 if augment is None else min(MOST_BATCHES, max(1, together))
        self.served = 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch; after a resume, those that are left."""
        first = self.served = self.sampler.first_batch
        # Where an epoch resumes inside a group, the whole group is augmented again.
        start = self.sampler.first_batch = first - first % self.group_size
        for served, batch in enumerate(islice(self._batches(start), first - start, None), start=first + 1):
            self.served = served
            yield batch

    def _batches(self, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        size = self.sampler.batch_size
        for images, labels in self.groups():
            key = (self.sampler.seed, self.sampler.epoch, self.sampler.rank, start)
            if self.augment is not None:
                with seeded(*key):
                    images = self.augment.change(images)
            for number, batch in enumerate(zip(images.split(size), labels.split(size), strict=True)):
                if self.augment is not None:
                    with seeded(*key, number):
                        batch = self.augment.mix(*batch)
                yield batch
            start += self.group_size

    @abstractmethod
    def groups(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images and labels of ``group_size`` batches at a time, before augmentation, on the device."""

    def begin_epoch(self, epoch: int) -> None:
        """Begin with the first batch of an epoch."""
        self.sampler.set_epoch(epoch)
        self.sampler.first_batch = 0

    def state_dict(self) -> dict[str, int]:
        """Position in the epoch, for Lightning's checkpoints."""
        return {"served": self.served}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue an epoch after the batches that were already served."""
        self.served = self.sampler.first_batch = state["served"] % len(self)


class MemoryLoader(BatchLoader):
    """Batches gathered from a uint8 array that lies on the device: a few microseconds per image.

    Args:
        images: All images, uint8 (N, C, H, W).
        labels: Their classes, (N,).
        sampler: Which images form each batch.
        augment: What is done to the images of a training batch; None leaves them as they are.
        device: Where the batches are needed; the whole array is moved there.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        sampler: BatchSampler,
        augment: Augment | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(sampler, augment, device or torch.device("cpu"), (images.shape[2], images.shape[3]))
        self.images = images.to(self.device)
        self.labels = labels.to(self.device)

    def groups(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images and labels of ``group_size`` batches at a time, before augmentation, on the device."""
        for group in grouped(self.sampler, self.group_size):
            indices = without_waiting(torch.cat(group), self.device)
            rows = indices.clamp(min=0)
            # index_select copies an image at a time, indexing byte by byte.
            yield self.images.index_select(0, rows), self.labels[rows].where(indices >= 0, -1)


class StreamLoader(BatchLoader):
    """Batches decoded from image files by worker processes, for sets that do not fit into memory.

    Args:
        files: The images on disk.
        sampler: Which images form each batch.
        augment: What is done to the images of a training batch; None leaves them as they are.
        device: Where the batches are needed.
        num_workers: Processes that decode.

    Raises:
        ValueError: When an image cannot be read; the message names its file.
    """

    def __init__(
        self,
        files: ImageFiles,
        sampler: BatchSampler,
        augment: Augment | None = None,
        device: torch.device | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__(sampler, augment, device or torch.device("cpu"), files.image_size)
        self.loader = DataLoader(
            files,
            batch_sampler=sampler,
            num_workers=num_workers,
            collate_fn=collate_readable,
            pin_memory=self.device.type == "cuda",
            # The next group is decoded while this one is trained on.
            prefetch_factor=max(2, math.ceil(self.group_size / num_workers)) if num_workers else None,
            persistent_workers=num_workers > 0,
            generator=torch.Generator(),  # of its own, so that iterating draws nothing from the run's
        )

    def groups(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images and labels of ``group_size`` batches at a time, before augmentation, on the device."""
        for group in grouped(self.loader, self.group_size):
            for decoded in group:
                decoded.raise_unreadable()
            images = [decoded.images.to(self.device, non_blocking=True) for decoded in group]
            labels = [decoded.labels.to(self.device, non_blocking=True) for decoded in group]
            yield (images[0], labels[0]) if len(group) == 1 else (torch.cat(images), torch.cat(labels))


def grouped(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of ``size`` items, the last one of what is left.

    >>> [*grouped("abcde", 2)]
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    iterator = iter(items)
    while group := [*islice(iterator, size)]:
        yield group


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Make torch's random draws inside a function of ``key`` alone, and leave no trace outside.

    >>> with seeded(0, 3):
    ...     first = torch.rand(1)
    >>> with seeded(0, 3):
    ...     bool(first == torch.rand(1))
    True
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    with torch.random.fork_rng(devices=[]):
        # The CPU generator only: every augmentation draws there, so that a GPU sees the same choices.
        torch.default_generator.manual_seed(int.from_bytes(digest) >> 1)
        yield
