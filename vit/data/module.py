"""Base of all data modules: splits, in-memory or streamed images, loaders."""

import math
import os
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from vit.data.augment import Augment, Flip
from vit.data.corrupt import Corrupted, check_corruptions, corrupt_sets
from vit.data.decoded_cache import load_decoded, readable_files
from vit.data.image_files import ImageFiles
from vit.data.image_set import ImageSet
from vit.data.lightning_data_module import LightningDataModule
from vit.data.loader import BatchLoader, MemoryLoader, StreamLoader
from vit.data.sampler import BatchSampler
from vit.data.split import Stage, fold_numbers, stratify
from vit.support.checks import (
    check_choice,
    check_natural,
    check_non_negative,
    check_positive_int,
    check_positive_share,
    check_probability,
    check_share,
    check_share_range,
)
from vit.support.class_names import name_classes
from vit.support.first_process import print_once

Policy = Literal["none", "randaugment", "trivialaugment"]
Balance = Literal["none", "sampling", "loss"]


SPLIT = "split"  # the key in a checkpoint of checksums of the images of each split


class ImageDataModule(LightningDataModule):
    """Labelled images in batches. A subclass defines ``load_sets`` and the attributes below.

    The ``num_classes`` of images without classes, such as those of texts, is 0.

    Args:
        batch_size: Images per step and device.
        val_fraction: Share of the training images of each class held out for validation; 0 trains on all of them.
        crop_scale: Smallest and largest share of a training image that a random crop covers, such as (0.35, 1.0). The
            crop has an aspect ratio from 3/4 to 4/3 and is scaled to the size of the model's input. None for no crop.
        crop_padding: Largest random shift of training images, in pixels; 0 for no shift.
        flip: Whether training images are mirrored left to right with probability 1/2; "alternate" draws this once for
            the first epoch, and then mirrors each image in every second one.
        policy: Further augmentation: RandAugment (two operations of magnitude 9), TrivialAugment (one operation of
            random magnitude), or none.
        policy_from: Number of epochs at the start without the policy. A shorter training never applies it.
        erasing: Probability that a rectangle of a training image is erased, in [0, 1].
        mixup: Alpha of mixup's Beta distribution, such as 0.8; 0 for no mixup.
        cutmix: Alpha of cutmix's Beta distribution, such as 1.0; 0 for no cutmix.
        mix_until: Share of the training after which mixup and cutmix stop, in (0, 1]. CCT stops at epoch 175 of 300
            (Hassani et al. 2021).
        balance: What makes up for classes with few images: "sampling" draws each class equally often in training,
            "loss" weights each class in the loss by the inverse of its number of training images.
        label_noise: Share of the training labels, in [0, 1], that are replaced by another class, each equally probable.
            Labels of validation and test images stay. The same labels are replaced for every ``seed``.
        corrupt: Corruptions of images before any augmentation, each with its strength, such as {"jpeg": 10} for a
            quality (1 to 100), {"blur": 1.5} for a Gaussian of so many pixels, or {"contrast": 0.3} for a factor.
        corrupted: Images that are corrupted: those of "train", those of "test", or "both" and validation as well.
        num_workers: Processes that decode image files; None for one per CPU core, at most 8.
        memory_limit: Largest data set kept in memory, in GB of decoded pixels; a larger one is decoded in each epoch.
        seed: Seed of the order and the augmentation of the images; the splits are the same for every seed.
        folds: Number of parts, with equal shares of every class, into which cross-validation cuts the images. One part
            is for test, and validation images are held out of the others. Test images that the data name are left out.
            Validation images that they name join the training images before the cut. None takes the splits of the data.
        fold: Number of the part for test, from 0 to folds - 1.
        normalised: Whether batches have floats, (pixel - mean) / std, for a LightningModule or a training loop of your
            own; otherwise they have uint8 images, which the models of this package normalise themselves.

    Raises:
        ValueError: If an argument is out of its range.
    """

    num_classes: int
    class_names: list[str]
    image_size: tuple[int, int]
    in_channels: int
    mean: list[float]
    std: list[float]
    remedies: dict[Stage, str] = {"val": "hold some out by --data.val_fraction 0.1", "test": "add a test/ folder"}

    def __init__(
        self,
        batch_size: int = 128,
        val_fraction: float = 0.1,
        crop_scale: tuple[float, float] | None = None,
        crop_padding: int = 0,
        flip: Flip = False,
        policy: Policy = "none",
        policy_from: int = 0,
        erasing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        mix_until: float = 1.0,
        balance: Balance = "none",
        label_noise: float = 0.0,
        corrupt: dict[str, float] | None = None,
        corrupted: Corrupted = "test",
        num_workers: int | None = None,
        memory_limit: float = 4.0,
        seed: int = 0,
        folds: int | None = None,
        fold: int | None = None,
        normalised: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        check_positive_int("batch_size", batch_size)
        check_share("val_fraction", val_fraction, "0.1 holds out one image in ten")
        if crop_scale is not None:
            check_share_range("crop_scale", crop_scale, "(0.35, 1.0) is usual")
        check_natural("crop_padding", crop_padding, "0 is no shift")
        check_choice("flip", flip, (True, False, "alternate"))
        check_choice("policy", policy, get_args(Policy))
        check_natural("policy_from", policy_from, "0 applies the policy from the first epoch on")
        if policy_from and policy == "none":
            raise ValueError(f"policy_from ({policy_from}) without a policy changes nothing: set policy to randaugment")
        check_probability("erasing", erasing)
        check_non_negative("mixup", mixup, "0 is no mixup")
        check_non_negative("cutmix", cutmix, "0 is no cutmix")
        check_positive_share("mix_until", mix_until, "for no mixing, set mixup and cutmix to 0")
        check_choice("balance", balance, get_args(Balance))
        check_probability("label_noise", label_noise)
        check_corruptions(corrupt or {}, corrupted)
        if num_workers is not None:
            check_natural("num_workers", num_workers, "0 decodes in the process of the training")
        check_non_negative("memory_limit", memory_limit, "0 keeps no images in memory")
        check_fold(folds, fold)
        self.batch_size = batch_size
        self.val_fraction = val_fraction
        self.augmentation: dict[str, Any] = {
            "crop_scale": crop_scale,
            "crop_padding": crop_padding,
            "flip": flip,
            "policy": policy,
            "policy_from": policy_from,
            "erasing": erasing,
            "mixup": mixup,
            "cutmix": cutmix,
        }
        self.mix_until = mix_until
        self.balance = balance
        self.label_noise = label_noise
        self.corrupt = corrupt or {}
        self.corrupted = corrupted
        self.made_worse: list[str] = []  # what label_noise and corrupt have changed, in words
        self.progress = 0.0  # share of the training that is done; the LightningModule sets it after each step
        self.num_workers = min(8, os.cpu_count() or 1) if num_workers is None else num_workers
        self.memory_limit = memory_limit
        self.seed = seed
        self.folds = folds
        self.fold = fold
        self.normalised = normalised
        self.sets: dict[Stage, ImageSet] = {}
        self.fingerprints: dict[Stage, int] = {}  # of the splits, before labels were changed
        self.without_classes: str | None = None  # why images that could have classes have none
        self.decodes_on_demand = False  # whether files are decoded only when they are asked for

    def load_sets(self) -> dict[Stage, ImageSet]:
        """Return "train", and "val" and "test" if the data set has them; ``setup`` holds a missing "val" out."""
        from vit.data import DATA_SETS  # imported here, as these are subclasses

        *others, last = DATA_SETS
        raise ValueError(f"{type(self).__name__} is not a data set: choose {', '.join(others)} or {last}")

    def setup(self, stage: str) -> None:
        """Load the splits. If there are no validation images, hold some out of the training images."""
        if self.sets:
            return
        sets = self.load_sets()
        if self.folds is not None:
            if "test" in sets:
                left_out = f"{len(sets['test'].labels):,} test images that the data name"
                print_once(f"{left_out} are left out: the folds are parts of the others")
            sets = self._take_fold(sets["train"])
        if "val" not in sets and "train" in sets and self.val_fraction > 0:
            kept, held_out = sets["train"].split(self.val_fraction)
            if len(held_out.labels) == 0:
                each = "image" if kept.groups is None else "group"
                raise ValueError(
                    f"val_fraction ({self.val_fraction}) of {kept.counted} holds out none: each {each} is the only one "
                    f"of some class, and stays in training: add {each}s, or set 0"
                )
            sets["train"], sets["val"] = kept, held_out
        name = type(self).__name__
        if stage == "validate" and "val" not in sets:
            raise ValueError(f"{name} has no validation images: {self.remedies['val']}, or run test instead")
        if self.stored_size != self.image_size:
            for split in sets:
                if split != "train" or self.augmentation["crop_scale"] is None:  # random crops are cut out of the whole
                    sets[split] = sets[split].centred(self.image_size)
        self.fingerprints = {split: images.fingerprint for split, images in sets.items()}
        if stage == "fit" and self.corrupt and self.corrupted == "test" and "test" not in sets:
            raise ValueError(
                f"corrupt ({dict(self.corrupt)}) changes test images, and there are none: add some, set corrupted to "
                "train or both, or --data.corrupt null"
            )
        self.made_worse = corrupt_sets(sets, self.num_classes, self.label_noise, self.corrupt, self.corrupted)
        self.sets = sets

    def _take_fold(self, images: ImageSet) -> dict[Stage, ImageSet]:
        """Return the images of the fold for test, and the others for training."""
        images = images.numbered()
        numbers = fold_numbers(images.labels, self.folds, images.groups)
        several = images.labels.ndim > 1
        for number, name in enumerate(name_classes(getattr(self, "class_names", None), self.num_classes)):
            folds = numbers[(images.labels[:, number] if several else images.labels == number).bool()].unique()
            if len(folds) == 1:
                parts = "images" if images.groups is None else "groups"
                raise ValueError(
                    f"fold {int(folds)} of {self.folds} holds all images of {name}, and no image is left to train on: "
                    f"add {parts} of {name}, or delete the class"
                )
        return {
            "train": images.subset((numbers != self.fold).nonzero().squeeze(1)),
            "test": images.subset((numbers == self.fold).nonzero().squeeze(1)),
        }

    @property
    def has_validation(self) -> bool:
        """Whether the data set has validation images, known before ``setup``."""
        return self.val_fraction > 0

    @property
    def stored_size(self) -> tuple[int, int]:
        """Rows and columns of the images before they are cropped to ``image_size``."""
        return self.image_size

    @property
    def class_weights(self) -> Tensor | None:
        """Weight of each class in the loss, (num_classes,), if ``balance`` is "loss"; its mean over the images is 1."""
        if self.balance != "loss":
            return None
        labels = self.sets["train"].labels
        if labels.ndim > 1:
            raise ValueError(
                "balance 'loss' weights classes, and these images have several labels each: set it to 'none', and "
                "--model.positive_weights balanced"
            )
        images = labels.bincount(minlength=self.num_classes)
        return len(labels) / (images.count_nonzero() * images.clamp(min=1))

    @property
    def left_out(self) -> int:
        """Number of training images that an epoch leaves out because they fill no batch."""
        sampler = self._sampler("train")
        return sampler.num_images - len(sampler) * sampler.global_size

    def decode_or_stream(self, files: ImageFiles, total: int, *, skip_damaged: bool = False) -> ImageSet:
        """Return the files as a split; decode them if the ``total`` images of all splits stay within ``memory_limit``.

        Damaged files that are not skipped are a ValueError that names them. If files are decoded on demand, the error
        is raised when they are asked for.
        """
        if self.decodes_on_demand and not skip_damaged:
            return ImageSet(files, torch.tensor(files.labels), files.names)
        if total * self.in_channels * math.prod(self.stored_size) <= self.memory_limit * 1e9:
            images, files = load_decoded(files, self.num_workers, skip_damaged=skip_damaged)
        else:
            images = files = readable_files(files, self.num_workers, skip_damaged=skip_damaged)
        return ImageSet(images, torch.tensor(files.labels), files.names)

    def train_dataloader(self) -> BatchLoader:
        """Return the augmented training batches, in a new order each epoch."""
        augment = Augment(self.num_classes, **self.augmentation, crop_size=self.image_size, mixing=self._mixing)
        return self._loader("train", augment)

    def _mixing(self) -> bool:
        # With mix_until 1, steps after the planned end (min_epochs) are mixed, too.
        return self.mix_until == 1 or self.progress < self.mix_until

    def val_dataloader(self) -> BatchLoader | list:
        """Return the validation batches, each image once, or an empty list."""
        return self._loader("val") if "val" in self.sets else []

    def test_dataloader(self) -> BatchLoader:
        """Return the test batches, each image once; a ValueError if there are none."""
        if "test" not in self.sets:
            name = type(self).__name__
            raise ValueError(f"{name} has no test images: {self.remedies['test']}, or run validate instead")
        return self._loader("test")

    predict_dataloader = test_dataloader

    @property
    def hparams_initial(self) -> dict[str, Any]:
        """The arguments for the loggers, without those that the LightningModule logs itself: its values win."""
        module = self.trainer and self.trainer.lightning_module
        logged = {} if module is None else module.hparams_initial
        own = super().hparams_initial
        return type(own)({name: value for name, value in own.items() if name not in logged})

    def _loader(self, stage: Stage, augment: Augment | None = None) -> BatchLoader:
        images, labels, trainer = self.sets[stage].images, self.sets[stage].labels, self.trainer
        device, sampler = trainer.strategy.root_device if trainer else torch.device("cpu"), self._sampler(stage)
        sampler.fixed = bool(trainer and trainer.overfit_batches)
        if isinstance(images, Tensor):
            loader = MemoryLoader(images, labels, sampler, augment, device)
        else:
            loader = StreamLoader(images, sampler, augment, device, self.num_workers)
        if self.normalised:
            loader.normalisation = {"mean": self.mean, "std": self.std}
        return loader

    def _sampler(self, stage: Stage) -> BatchSampler:
        labels = self.sets[stage].labels
        return BatchSampler(
            len(labels),
            self.batch_size,
            shuffle=stage == "train",
            balance=stratify(labels) if self.balance == "sampling" else None,
            seed=self.seed,
            rank=self.trainer.global_rank if self.trainer else 0,
            world_size=self.trainer.world_size if self.trainer else 1,
        )


def check_fold(folds: Any, fold: Any) -> None:
    """Check that ``fold`` is one of ``folds``, or that both are None.

    >>> check_fold(5, 5)
    Traceback (most recent call last):
    ValueError: fold (5) must be a whole number from 0 to 4, one of 5 folds

    Raises:
        ValueError: If they are not.
    """
    if folds is None and fold is None:
        return
    if folds is None:
        raise ValueError(f"fold ({fold}) is one of several: add their number, such as --data.folds 5")
    check_positive_int("folds", folds, "5 is usual")
    if folds == 1:
        raise ValueError("folds (1) must be at least 2: one part is for test, and the others for training")
    if not isinstance(fold, int) or isinstance(fold, bool) or not 0 <= fold < folds:
        raise ValueError(f"fold ({fold}) must be a whole number from 0 to {folds - 1}, one of {folds} folds")
