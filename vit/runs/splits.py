"""The images of a run by split, from our data modules or from a user's own loaders."""

from collections.abc import Sized
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler

from vit.data.image_set import ImageSet
from vit.data.module import ImageDataModule
from vit.data.split import Stage

SAMPLE = 512  # images in which we look for some of each class, for pictures


class LoadedImages:
    """Images of a user's own loader, with the methods of ``ImageSet`` that drawing pictures needs.

    Args:
        loader: The loader.
        module: The module that takes its batches.
    """

    def __init__(self, loader: Any, module: LightningModule) -> None:
        self.loader = loader
        self.module = module

    @property
    def count(self) -> int | None:
        """Number of images; None if the data set does not tell it."""
        dataset = getattr(self.loader, "dataset", None)
        return len(dataset) if isinstance(dataset, Sized) else None

    @cached_property
    def labels(self) -> Tensor:
        """Labels of the first images."""
        return self.decode(torch.arange(min(SAMPLE, self.count or 0)))[1]

    def name(self, index: int) -> str:
        """Return the number of an image in the split, as its file is not known."""
        return str(index)

    def decode(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images at ``indices``, uint8 (n, C, H, W), and their labels.

        Raises:
            ValueError: If the loader does not yield images in the order of its data set.
        """
        loader = self.loader
        if not isinstance(loader, DataLoader) or not isinstance(loader.sampler, SequentialSampler):
            raise ValueError("the loader yields images in an order of its own, so that none is found again")
        numbers, parts = iter(indices.tolist()), []
        while part := [loader.dataset[number] for number in islice(numbers, 64)]:
            images, labels = self.module._apply_batch_transfer_handler(loader.collate_fn(part))
            pixels = images if images.dtype == torch.uint8 else (255 * images.clamp(0, 1)).round().to(torch.uint8)
            parts.append((pixels.cpu(), labels.cpu()))
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def splits_of(trainer: Trainer) -> dict[Stage, ImageSet | LoadedImages]:
    """Return the splits of a trainer's data; of a user's own data, those whose loaders the trainer has made."""
    if not is_users_own(trainer.datamodule):
        return trainer.datamodule.sets
    loaders = {"train": trainer.train_dataloader, "val": trainer.val_dataloaders, "test": trainer.test_dataloaders}
    return {
        stage: LoadedImages(loader, trainer.lightning_module)
        for stage, loader in loaders.items()
        if loader not in (None, [])
    }


def count_images(images: ImageSet | LoadedImages) -> int | None:
    """Return the number of images of a split; None if it is not known."""
    return images.count if isinstance(images, LoadedImages) else len(images.labels)


def is_users_own(data: Any) -> bool:
    """Return whether the data are a user's own loaders, in a data module or without one."""
    return data is None or (isinstance(data, LightningDataModule) and not isinstance(data, ImageDataModule))


def has_split(data: LightningDataModule, stage: Stage) -> bool:
    """Return whether a data module has a split; our own modules know that after ``setup``."""
    if not is_users_own(data):
        return stage in data.sets
    return is_overridden(f"{stage}_dataloader", data)


def validates(data: LightningDataModule) -> bool:
    """Return whether a data module has validation images, known before ``setup``."""
    return has_split(data, "val") if is_users_own(data) else data.has_validation
