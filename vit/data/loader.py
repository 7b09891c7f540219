"""Loaders of whole batches: from an array in memory, or decoded from files by worker processes.

Both yield ``(images, labels)`` on the training device: uint8 or float images (B, C, H, W) with values in
[0, 255] or [0, 1], and labels (B,) or soft targets (B, classes). A label of -1 marks a row that only fills
the batch up.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from vit.data.files import ImageFiles, collate_readable
from vit.data.sampler import BatchSampler
from vit.data.transfer import without_waiting

Augmentation = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class BatchLoader(ABC):
    """What the two loaders share: augmentation on the device, seeded per batch, and a position to resume from.

    Args:
        sampler: Which images form each batch.
        augment: Maps a batch of images and labels to another; None leaves them as they are.
        device: Where the batches are needed.
    """

    def __init__(self, sampler: BatchSampler, augment: Augmentation | None, device: torch.device) -> None:
        # Lightning finds the sampler under these two names, and tells it the epoch.
        self.sampler = self.batch_sampler = sampler
        self.augment = augment
        self.device = device
        self.served = 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch."""
        first = self.served = self.sampler.first_batch
        for batch, (images, labels) in enumerate(self.batches(), start=first):
            if self.augment is not None:
                with seeded(self.sampler.seed, self.sampler.epoch, batch, self.sampler.rank):
                    images, labels = self.augment(images, labels)
            self.served = batch + 1
            yield images, labels

    @abstractmethod
    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch before augmentation, on the device."""

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
        augment: Maps a batch of images and labels to another; None leaves them as they are.
        device: Where the batches are needed; the whole array is moved there.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        sampler: BatchSampler,
        augment: Augmentation | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(sampler, augment, device or torch.device("cpu"))
        self.images = images.to(self.device)
        self.labels = labels.to(self.device)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch before augmentation, on the device."""
        for indices in self.sampler:
            indices = without_waiting(indices, self.device)
            rows = indices.clamp(min=0)
            # index_select copies an image at a time, indexing byte by byte.
            yield self.images.index_select(0, rows), self.labels[rows].where(indices >= 0, -1)


class StreamLoader(BatchLoader):
    """Batches decoded from image files by worker processes, for sets that do not fit into memory.

    Args:
        files: The images on disk.
        sampler: Which images form each batch.
        augment: Maps a batch of images and labels to another; None leaves them as they are.
        device: Where the batches are needed.
        num_workers: Processes that decode.

    Raises:
        ValueError: When an image cannot be read; the message names its file.
    """

    def __init__(
        self,
        files: ImageFiles,
        sampler: BatchSampler,
        augment: Augmentation | None = None,
        device: torch.device | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__(sampler, augment, device or torch.device("cpu"))
        self.loader = DataLoader(
            files,
            batch_sampler=sampler,
            num_workers=num_workers,
            collate_fn=collate_readable,
            pin_memory=self.device.type == "cuda",
            persistent_workers=num_workers > 0,
            generator=torch.Generator(),  # of its own, so that iterating draws nothing from the run's
        )

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch before augmentation, on the device."""
        for decoded in self.loader:
            decoded.raise_unreadable()
            yield (
                decoded.images.to(self.device, non_blocking=True),
                decoded.labels.to(self.device, non_blocking=True),
            )


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
