"""Loaders of whole batches: from an array in memory, or decoded from files by worker processes.

Both yield ``(images, labels)`` on the training device: uint8 images (B, C, H, W) and the labels of ``ImageSet``. Mixed
batches have float images in [0, 1] and soft targets (B, classes). With ``normalisation`` all images are floats. The
label -1, or a row of it, marks padding.

Letter in the einops patterns: b batch.
"""

import ctypes
import math
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice, repeat
from multiprocessing import RawValue, util
from typing import TypeVar

import torch
from einops import rearrange
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.transforms.v2 import functional as tv

from vit.data.augment import Augment, alternate_flips
from vit.data.crops import one_thread
from vit.data.device_copy import copy_async
from vit.data.image_files import ImageFiles, collate_readable, raise_unreadable
from vit.data.sampler import BatchSampler
from vit.data.seeding import seeded
from vit.support.first_process import print_once

Item = TypeVar("Item")

# Batches of small images are augmented in groups: launching the kernels for a single batch takes longer than running
# them. Changing the limits of a group changes the random choices of each image.
MAX_GROUP_BATCHES, MAX_GROUP_PIXELS = 16, 2**21


class BatchLoader(ABC):
    """Base of the two loaders: augments batches on the device, and resumes inside an epoch.

    Images are augmented in groups of batches, and mixed batch by batch. The random choices depend on the seed, the
    epoch, the process, and the positions of the group and of the batch.

    Args:
        sampler: Draws the indices of the images of each batch.
        augment: Augmentation of training batches; None for evaluation.
        device: Device of the batches.
        image_size: Rows and columns of an image.
    """

    augmentation_context: Callable[[], AbstractContextManager] = nullcontext  # around the augmentation of a group
    normalisation: Mapping[str, list[float]] | None = None  # mean and std of the channels, for float images

    def __init__(
        self, sampler: BatchSampler, augment: Augment | None, device: torch.device | str, image_size: tuple[int, int]
    ) -> None:
        # Lightning finds the sampler by these two names, and calls its set_epoch.
        self.sampler = self.batch_sampler = sampler
        self.augment = augment
        self.device = torch.device(device)
        fitting = MAX_GROUP_PIXELS // (sampler.batch_size * math.prod(image_size))
        self.group_size = 1 if augment is None else min(MAX_GROUP_BATCHES, max(1, fitting))
        self.served = 0

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch; after a resume, the remaining ones."""
        first = self.served = self.sampler.first_batch
        # A resume inside a group augments the whole group again, for the same random choices.
        start = self.sampler.first_batch = first - first % self.group_size
        for served, batch in enumerate(islice(self._batches(start), first - start, None), start=first + 1):
            self.served = served
            yield batch

    def _batches(self, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        size = self.sampler.batch_size
        for (images, labels), mirrored in zip(self.groups(), self._mirrored(start), strict=False):
            key = (self.sampler.seed, self.sampler.epoch, self.sampler.rank, start)
            if self.augment is not None:
                with seeded(*key), self.augmentation_context():
                    images = self.augment.change(images, self.sampler.epoch, mirrored)
            for number, batch in enumerate(zip(images.split(size), labels.split(size), strict=True)):
                if self.augment is not None:
                    with seeded(*key, number):
                        batch = self.augment.mix(*batch)
                yield batch if self.normalisation is None else (self._normalised(batch[0]), batch[1])
            start += self.group_size

    def _normalised(self, images: Tensor) -> Tensor:
        return tv.normalize(tv.to_dtype(images, torch.float32, scale=True), **self.normalisation)

    def _mirrored(self, start: int) -> Iterator[Tensor | None]:
        """Yield which images of each group are mirrored, from batch ``start`` on, or always None if chance decides."""
        if self.augment is None or self.augment.flip != "alternate":
            yield from repeat(None)
        mirrored = alternate_flips(self.sampler.num_images, self.sampler.seed, self.sampler.epoch)
        for group in grouped(self.sampler.batches(start), self.group_size):
            yield mirrored[torch.cat(group)]

    @abstractmethod
    def groups(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images and labels of ``group_size`` batches at a time, before augmentation, on the device."""

    def begin_epoch(self, epoch: int) -> None:
        """Start an epoch at its first batch."""
        self.sampler.set_epoch(epoch)
        self.sampler.first_batch = self.sampler.shift = 0

    def state_dict(self) -> dict[str, int]:
        """Return the position in the epoch, for Lightning's checkpoints."""
        is_over = self.served == len(self)  # and the next epoch begins at its first image
        served, shift = (0, 0) if is_over else (self.served, self.sampler.shift)
        sampler = self.sampler
        about = {"global_size": sampler.global_size, "seed": sampler.seed, "num_images": sampler.num_images}
        return {"served": served, "shift": shift} | about

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue an epoch after the images that were served before, in batches of any size.

        If the batch size has changed, for example with the number of processes, batches begin at the first image that
        was not served, and are numbered as the last batches of the epoch.

        Raises:
            ValueError: If the seed or the number of images has changed inside an epoch, as the images that are left
                would be other ones.
        """
        sampler, served = self.sampler, state["served"]
        sampler.shift = state.get("shift", 0)
        seed = state.get("seed", sampler.seed)  # an earlier checkpoint has none
        if seed != sampler.seed and (served or sampler.shift):
            raise ValueError(
                f"seed ({sampler.seed}) differs from {seed}, which decides the images that are left in this epoch: "
                f"resume with seed {seed}, or from a checkpoint at the end of an epoch"
            )
        count = state.get("num_images", sampler.num_images)
        if count != sampler.num_images and (served or sampler.shift):
            raise ValueError(
                f"the training has {sampler.num_images:,} images and not {count:,}, which decides those that are left "
                "in this epoch: resume with the same images, or from a checkpoint at the end of an epoch"
            )
        if "global_size" not in state:  # an earlier checkpoint, in which an epoch that is over has served all batches
            served %= len(self)
        elif state["global_size"] != sampler.global_size:
            images = sampler.shift + served * state["global_size"]
            served = len(self) - (sampler.num_images - images) // sampler.global_size
            sampler.shift = images - served * sampler.global_size
        self.served = sampler.first_batch = served


class MemoryLoader(BatchLoader):
    """Batches gathered from an array uint8 (N, C, H, W) on the device: a few microseconds per image."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        sampler: BatchSampler,
        augment: Augment | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(sampler, augment, device, (images.shape[2], images.shape[3]))
        self.images = images.to(self.device)
        self.labels = labels.to(self.device)

    def groups(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images and labels of ``group_size`` batches at a time, before augmentation, on the device."""
        for group in grouped(self.sampler, self.group_size):
            indices = copy_async(torch.cat(group), self.device)
            rows = indices.clamp(min=0)
            # index_select copies whole images, indexing copies byte by byte.
            labels = rearrange(self.labels[rows], "b ... -> ... b").where(indices >= 0, -1)
            yield self.images.index_select(0, rows), rearrange(labels, "... b -> b ...")


class StreamLoader(BatchLoader):
    """Batches decoded from image files by worker processes; a file that cannot be read is a ValueError."""

    augmentation_context = staticmethod(one_thread)  # workers decode on the other cores

    def __init__(
        self,
        files: ImageFiles,
        sampler: BatchSampler,
        augment: Augment | None = None,
        device: torch.device | str = "cpu",
        num_workers: int = 0,
    ) -> None:
        super().__init__(sampler, augment, device, files.image_size)
        self.files, self.noted = files, set()
        is_over = RawValue(ctypes.c_bool)
        self.loader = DataLoader(
            files,
            batch_sampler=Listed(sampler),
            num_workers=num_workers,
            collate_fn=collate_readable,
            pin_memory=self.device.type == "cuda",
            # The workers decode the next group during the training steps of this one.
            prefetch_factor=max(2, math.ceil(self.group_size / num_workers)) if num_workers else None,
            persistent_workers=num_workers > 0,
            worker_init_fn=partial(ignore_first_sigterm, is_over),
            generator=torch.Generator(),  # else DataLoader draws from the global generator
        )
        if num_workers:
            # When this process ends, this runs before it sends its workers a SIGTERM and waits for them.
            util.Finalize(self.loader, setattr, (is_over, "value", True), exitpriority=0)

    def groups(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images and labels of ``group_size`` batches at a time, before augmentation, on the device."""
        for group in grouped(self.loader, self.group_size):
            for decoded in group:
                raise_unreadable(decoded.unreadable)
                self._print_notes(decoded.notes)
            images = [decoded.images.to(self.device, non_blocking=True) for decoded in group]
            labels = [decoded.labels.to(self.device, non_blocking=True) for decoded in group]
            yield (images[0], labels[0]) if len(group) == 1 else (torch.cat(images), torch.cat(labels))

    def _print_notes(self, notes: Mapping[int, Sequence[str]]) -> None:
        """Print the first image of each kind of note, unless an inventory has printed the notes on it."""
        for index, found in notes.items():
            if (path := self.files.paths[index]) not in self.files.notes:
                for note in (note for note in found if note not in self.noted):
                    self.noted.add(note)
                    print_once(f"{path}: {note} (printed for the first such image)")


class Listed:
    """The batches of a sampler as lists: passing a list to a worker process takes less time than passing a tensor."""

    def __init__(self, sampler: BatchSampler) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of the images of each batch."""
        for indices in self.sampler:
            yield indices.tolist()


def ignore_first_sigterm(is_over: ctypes.c_bool, worker: int) -> None:
    """Keep a worker alive after one SIGTERM and any SIGUSR1, which torchrun and Slurm send to workers, too.

    The training stops after its current step, and then ends its workers. A second SIGTERM ends a worker, and so does
    the first one once the training ``is_over``.
    """

    def go_on_once(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if is_over.value:
            os._exit(0)  # as torch's own handler does, which this one replaces: torch takes another status for an error

    signal.signal(signal.SIGTERM, go_on_once)
    if hasattr(signal, "SIGUSR1"):  # Windows has none
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def grouped(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of ``size`` items; the last one holds the rest.

    >>> [*grouped("abcde", 2)]
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    iterator = iter(items)
    while group := [*islice(iterator, size)]:
        yield group
