"""What all data modules share: the splits, the choice between memory and stream, the loaders."""

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
from vit.data.split import SPLIT_SEED, stratified_split

Stage = Literal["train", "val", "test"]


@dataclass
class ImageSet:
    """One split: labels, and the images either decoded (uint8, (N, C, H, W)) or as files."""

    images: Tensor | ImageFiles
    labels: Tensor

    def subset(self, indices: Tensor) -> "ImageSet":
        """The part of this split that ``indices`` names."""
        if isinstance(self.images, Tensor):
            return ImageSet(self.images[indices], self.labels[indices])
        paths = [self.images.paths[i] for i in indices]
        labels = self.labels[indices]
        return ImageSet(ImageFiles(paths, labels.tolist(), self.images.image_size, self.images.in_channels), labels)


class ImageDataModule(LightningDataModule):
    """Labelled images in batches. A subclass says what its classes are, and loads ``train``, ``val`` and ``test``.

    Args:
        batch_size: Images per step and device.
        val_fraction: Share of the training images held out for validation, the same of every class; 0 trains on
            all, and then there is no validation.
        crop_padding: Training images are shifted by up to this many pixels; 0 leaves them in place.
        flip: Whether training images are mirrored left to right with probability 1/2.
        policy: Further augmentation of training images: RandAugment (two operations of magnitude 9),
            TrivialAugment (one operation of any magnitude), or none.
        erasing: Probability that a rectangle of a training image is erased, in [0, 1].
        mixup: Strength of mixup (alpha of the Beta distribution), such as 0.8; 0 leaves it out.
        cutmix: Strength of cutmix (alpha of the Beta distribution), such as 1.0; 0 leaves it out.
        mix_until: Share of the training after which mixup and cutmix stop, in (0, 1]: 0.6 leaves the last 40 % for
            images as they are, near where the recipe of CCT ends mixing (epoch 175 of 300, Hassani et al. 2021).
        num_workers: Processes that decode image files; None means one per CPU core, at most 8.
        memory_limit: Largest data set kept in memory, in GB of decoded pixels; a larger one is decoded from its
            files again each epoch.
        seed: Seed of the order of the images and of their augmentation; the splits are the same for every seed.
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
            raise ValueError(f"mix_until ({mix_until}) must be in (0, 1]: to mix not at all, set mixup and cutmix to 0")
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
        self.progress = 0.0  # share of the training that is done, as whoever trains tells after each step
        self.num_workers = min(8, os.cpu_count() or 1) if num_workers is None else num_workers
        self.memory_limit = memory_limit
        self.seed = seed
        self.sets: dict[Stage, ImageSet] = {}

    def load_sets(self) -> dict[Stage, ImageSet]:
        """Load the splits there are; without "val", it is held out of "train"."""
        raise ValueError(
            f"{type(self).__name__} is not a data set: choose CIFAR10, CIFAR100, ImageFolder, Digits or PlantedDigits"
        )

    def setup(self, stage: str) -> None:
        """Load the splits, and hold the validation images out of the training images."""
        if self.sets:
            return
        sets = self.load_sets()
        if "val" not in sets and self.val_fraction > 0:
            kept, held_out = stratified_split(sets["train"].labels, self.val_fraction, SPLIT_SEED)
            if len(held_out) == 0:
                raise ValueError(
                    f"val_fraction ({self.val_fraction}) of {len(kept)} images holds out none: make it larger, or 0"
                )
            sets["val"], sets["train"] = sets["train"].subset(held_out), sets["train"].subset(kept)
        self.sets = sets

    @property
    def has_validation(self) -> bool:
        """Whether there will be validation images."""
        return self.val_fraction > 0

    def fits_in_memory(self, num_images: int) -> bool:
        """Whether this many decoded images stay within ``memory_limit``."""
        rows, columns = self.image_size
        return num_images * self.in_channels * rows * columns <= self.memory_limit * 1e9

    def decode_if_it_fits(self, files: ImageFiles, total: int) -> ImageSet:
        """The files as a split: decoded into memory if the ``total`` images of the set fit, else streamed."""
        images = load_decoded(files, self.num_workers) if self.fits_in_memory(total) else files
        return ImageSet(images, torch.tensor(files.labels))

    def train_dataloader(self) -> BatchLoader:
        """Augmented training batches, in a new order each epoch."""
        return self._loader("train", Augment(self.num_classes, **self.augmentation, mixing=self._mixing))

    def _mixing(self) -> bool:
        # Steps after the end, such as those that min_epochs asks for, are mixed as those before it.
        return self.mix_until == 1 or self.progress < self.mix_until

    def val_dataloader(self) -> BatchLoader | list:
        """Validation batches, each image once; an empty list where nothing is held out."""
        return self._loader("val") if "val" in self.sets else []

    def test_dataloader(self) -> BatchLoader:
        """Test batches, each image once."""
        if "test" not in self.sets:
            raise ValueError(f"{type(self).__name__} has no test images: add a test/ folder, or run validate instead")
        return self._loader("test")

    def _loader(self, stage: Stage, augment: Augment | None = None) -> BatchLoader:
        images, labels = self.sets[stage].images, self.sets[stage].labels
        trainer = self.trainer
        if trainer and trainer.overfit_batches:
            raise ValueError(
                f"overfit_batches ({trainer.overfit_batches}) would train on other images each epoch, whose order is "
                "drawn anew: take a folder of few images, or --trainer.limit_train_batches"
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
