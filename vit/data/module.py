"""Base of all data modules: splits, in-memory or streamed images, loaders."""

import math
import os
from dataclasses import dataclass
from typing import Any, Literal

import torch
from lightning import LightningDataModule
from torch import Tensor

from vit.data.augment import Augment
from vit.data.cache import load_decoded
from vit.data.files import ImageFiles
from vit.data.loader import BatchLoader, MemoryLoader, StreamLoader
from vit.data.sampler import BatchSampler
from vit.data.split import stratified_split

Stage = Literal["train", "val", "test"]


@dataclass
class ImageSet:
    """The images of one split, decoded (uint8, (N, C, H, W)) or as files, and their labels (N,)."""

    images: Tensor | ImageFiles
    labels: Tensor

    def subset(self, indices: Tensor) -> "ImageSet":
        """Return the images and labels at ``indices``."""
        if isinstance(self.images, Tensor):
            return ImageSet(self.images[indices], self.labels[indices])
        paths = [self.images.paths[i] for i in indices]
        labels = self.labels[indices]
        return ImageSet(ImageFiles(paths, labels.tolist(), self.images.image_size, self.images.in_channels), labels)


class ImageDataModule(LightningDataModule):
    """Labelled images in batches. A subclass defines the attributes below and ``load_sets``.

    Args:
        batch_size: Images per step and device.
        val_fraction: Share of the training images of each class held out for validation; 0 trains on all images,
            without validation.
        crop_padding: Largest random shift of training images, in pixels; 0 for no shift.
        flip: Whether training images are mirrored left to right with probability 1/2.
        policy: Further augmentation of training images: RandAugment (two operations of magnitude 9),
            TrivialAugment (one operation of random magnitude), or none.
        erasing: Probability that a rectangle of a training image is erased, in [0, 1].
        mixup: Alpha of mixup's Beta distribution, such as 0.8; 0 for no mixup.
        cutmix: Alpha of cutmix's Beta distribution, such as 1.0; 0 for no cutmix.
        mix_until: Share of the training after which mixup and cutmix stop, in (0, 1]. At 0.6, the last 40 % are
            without them; the recipe of CCT stops at epoch 175 of 300 (Hassani et al. 2021).
        num_workers: Processes that decode image files; None for one per CPU core, at most 8.
        memory_limit: Largest data set kept in memory, in GB of decoded pixels; a larger one is decoded again in each
            epoch.
        seed: Seed of the order and the augmentation of the images; the splits are the same for every seed.
    """

    num_classes: int
    class_names: list[str]
    image_size: tuple[int, int]
    in_channels: int
    mean: list[float]
    std: list[float]

    def __init__(
        self,
        batch_size: int = 128,
        val_fraction: float = 0.1,
        crop_padding: int = 0,
        flip: bool = False,
        policy: Literal["none", "randaugment", "trivialaugment"] = "none",
        erasing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        mix_until: float = 1.0,
        num_workers: int | None = None,
        memory_limit: float = 4.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size ({batch_size}) must be at least 1")
        if not 0 <= val_fraction < 1:
            raise ValueError(f"val_fraction ({val_fraction}) must be in [0, 1): 0.1 holds out one image in ten")
        if not 0 < mix_until <= 1:
            raise ValueError(f"mix_until ({mix_until}) must be in (0, 1]: for no mixing, set mixup and cutmix to 0")
        self.batch_size = batch_size
        self.val_fraction = val_fraction
        self.augmentation: dict[str, Any] = {
            "crop_padding": crop_padding,
            "flip": flip,
            "policy": policy,
            "erasing": erasing,
            "mixup": mixup,
            "cutmix": cutmix,
        }
        self.mix_until = mix_until
        self.progress = 0.0  # share of the training that is done, in [0, 1]; the trained module sets it after each step
        self.num_workers = min(8, os.cpu_count() or 1) if num_workers is None else num_workers
        self.memory_limit = memory_limit
        self.seed = seed
        self.sets: dict[Stage, ImageSet] = {}

    def load_sets(self) -> dict[Stage, ImageSet]:
        """Return "train", and "val" and "test" if the data set has them; a missing "val" is held out of "train"."""
        raise ValueError(
            f"{type(self).__name__} is not a data set: choose CIFAR10, CIFAR100, ImageFolder, Digits or PlantedDigits"
        )

    def setup(self, stage: str) -> None:
        """Load the splits; hold validation images out of the training images unless there are some."""
        if self.sets:
            return
        sets = self.load_sets()
        if "val" not in sets and self.val_fraction > 0:
            kept, held_out = stratified_split(sets["train"].labels, self.val_fraction)
            if len(held_out) == 0:
                raise ValueError(
                    f"val_fraction ({self.val_fraction}) of {len(kept)} images holds out none: make it larger, or 0"
                )
            sets["val"], sets["train"] = sets["train"].subset(held_out), sets["train"].subset(kept)
        self.sets = sets

    @property
    def has_validation(self) -> bool:
        """Whether the data set has validation images, known before ``setup``."""
        return self.val_fraction > 0

    def decode_or_stream(self, files: ImageFiles, total: int) -> ImageSet:
        """Return the files as a split, decoded if the ``total`` images of all splits stay within ``memory_limit``."""
        fits = total * self.in_channels * math.prod(self.image_size) <= self.memory_limit * 1e9
        return ImageSet(load_decoded(files, self.num_workers) if fits else files, torch.tensor(files.labels))

    def train_dataloader(self) -> BatchLoader:
        """Return the augmented training batches, in a new order each epoch."""
        return self._loader("train", Augment(self.num_classes, **self.augmentation, mixing=self._mixing))

    def _mixing(self) -> bool:
        # With mix_until 1, steps beyond the planned end (min_epochs) are mixed, too.
        return self.mix_until == 1 or self.progress < self.mix_until

    def val_dataloader(self) -> BatchLoader | list:
        """Return the validation batches, each image once; an empty list without validation images."""
        return self._loader("val") if "val" in self.sets else []

    def test_dataloader(self) -> BatchLoader:
        """Return the test batches, each image once.

        Raises:
            ValueError: If there are no test images.
        """
        if "test" not in self.sets:
            raise ValueError(f"{type(self).__name__} has no test images: add a test/ folder, or run validate instead")
        return self._loader("test")

    def _loader(self, stage: Stage, augment: Augment | None = None) -> BatchLoader:
        images, labels = self.sets[stage].images, self.sets[stage].labels
        trainer = self.trainer
        if trainer and trainer.overfit_batches:
            raise ValueError(
                f"overfit_batches ({trainer.overfit_batches}) would train on other images in each epoch, since the "
                "order is new: use a folder of few images, or --trainer.limit_train_batches"
            )
        sampler = BatchSampler(
            len(labels),
            self.batch_size,
            shuffle=stage == "train",
            seed=self.seed,
            rank=trainer.global_rank if trainer else 0,
            world_size=trainer.world_size if trainer else 1,
        )
        device = trainer.strategy.root_device if trainer else torch.device("cpu")
        if isinstance(images, Tensor):
            return MemoryLoader(images, labels, sampler, augment, device)
        return StreamLoader(images, sampler, augment, device, self.num_workers)
