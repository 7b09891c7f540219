"""Converts batches of users' own loaders for the objectives: images as bytes or in [0, 1], and labels."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vit.data.module import ImageDataModule

# Usual names of labels in batches with further tensors.
LABELS = ("label", "labels", "target", "targets", "class", "classes", "y", "tokens")
# Pixels in [0, 1] that were scaled by a spline lie a little outside; normalised ones lie far below 0.
OVERSHOOT = 0.25


def pair_of(batch: Any) -> tuple[Tensor, Tensor | None]:
    """Return images (B, C, H, W) and labels of a batch, which is a pair, a list, a dictionary or images alone.

    The images are the only tensor of four dimensions. The labels are the only other tensor with a row for each image.
    If there are several, the labels are the one with a name of ``LABELS``. For images alone they are None.

    >>> images, labels = pair_of({"pixels": torch.zeros(2, 3, 8, 8), "y": torch.tensor([4, 5]), "id": ["a", "b"]})
    >>> images.shape, labels
    (torch.Size([2, 3, 8, 8]), tensor([4, 5]))

    Raises:
        ValueError: If it is not clear which tensors are images and labels, or there are no images.
    """
    parts = (
        batch if isinstance(batch, Mapping) else dict(enumerate(batch if isinstance(batch, list | tuple) else [batch]))
    )
    tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor)}
    images = [name for name, part in tensors.items() if part.ndim == 4]
    if len(images) != 1:
        raise ValueError(
            f"a batch needs one tensor of images (batch, channels, rows, columns), and this one has {_described(parts)}"
        )
    count = len(tensors[images[0]])
    if not count:
        raise ValueError(f"a batch has no images ({_described(parts)}): let the loader leave empty batches out")
    others = [name for name, part in tensors.items() if name != images[0] and part.ndim and len(part) == count]
    labels = [name for name in others if str(name).lower() in LABELS] if len(others) > 1 else others
    if others and len(labels) != 1:
        raise ValueError(
            f"a batch needs one tensor of labels, and this one has {_described(parts)}: name it label, or leave the "
            "others out"
        )
    return tensors[images[0]], tensors[labels[0]] if labels else None


def _described(parts: Mapping[Any, Any]) -> str:
    shapes = [
        f"{name} {tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__}"
        for name, part in parts.items()
    ]
    return ", ".join(shapes) or "nothing"


def check_labels_of_batch(labels: Tensor, num_classes: int, is_trained: bool = False) -> None:
    """Check that labels are numbers of classes, (B,), or a share of each class, (B, num_classes).

    The label -1 pads a batch of an evaluation; a batch that is trained on has none.

    >>> check_labels_of_batch(torch.tensor([1, 10]), 10)
    Traceback (most recent call last):
    ValueError: a label is 10, and the classes are 0 to 9: set --model.num_classes 11, or number them from 0

    Raises:
        ValueError: If they are not.
    """
    if labels.ndim == 2 and labels.shape[1] == num_classes:
        return
    if labels.ndim != 1 or labels.is_floating_point():
        raise ValueError(
            f"labels are {labels.dtype} of shape {tuple(labels.shape)}: give the number of the class of each image, or "
            f"a row of {num_classes} shares"
        )
    lowest, highest = labels.min().item(), labels.max().item()
    if highest >= num_classes or lowest < -1:
        label = highest if highest >= num_classes else lowest
        remedy = f"set --model.num_classes {highest + 1}, or number" if highest >= num_classes else "number"
        raise ValueError(f"a label is {label}, and the classes are 0 to {num_classes - 1}: {remedy} them from 0")
    if is_trained and lowest == -1:
        count = int((labels == -1).sum())
        raise ValueError(f"{count} labels of a training batch are -1: leave images without a class out")


def one_class_each(labels: Tensor) -> Tensor:
    """Return the class numbers, (B,), of one-hot rows (B, num_classes); other rows stay as they are.

    >>> one_class_each(torch.tensor([[0, 1, 0], [1, 0, 0]])), one_class_each(torch.tensor([[1.0, 1.0]]))
    (tensor([1, 0]), tensor([[1., 1.]]))
    """
    has_one = (((labels == 0) | (labels == 1)).all() & (labels.sum(dim=1) == 1).all()).item()
    return labels.argmax(dim=1) if has_one else labels


def are_normalised(images: Tensor) -> bool:
    """Return whether images (B, C, H, W) had a mean subtracted: their darkest pixel is then far below 0.

    >>> are_normalised(torch.tensor([0.0, 1.02])), are_normalised(torch.tensor([-1.9, 2.1]))
    (False, True)

    Raises:
        ValueError: If they are neither bytes, nor in [0, 1], nor normalised.
    """
    if images.dtype == torch.uint8:
        return False
    if not images.is_floating_point():
        raise ValueError(f"images are {images.dtype}: give bytes (uint8), or floats in [0, 1]")
    lowest, highest = images.min().item(), images.max().item()
    if not (abs(lowest) < float("inf") and abs(highest) < float("inf")):
        raise ValueError(f"the pixels of a batch go from {lowest} to {highest}: some are no numbers")
    if lowest >= -OVERSHOOT and highest <= 1 + OVERSHOOT:
        return False
    if lowest >= 0:
        raise ValueError(f"float images go from {lowest:g} to {highest:g}: give bytes (uint8), or divide by 255")
    return True


def _is_far_below_zero(images: Tensor) -> bool:
    """Return whether pixels are as dark as those of normalised images; reading them would wait for a GPU."""
    is_asked = images.device.type == "cpu" and images.is_floating_point() and images.numel() > 0
    return is_asked and images.min().item() < -1


def _checked_labels(labels: Tensor, module: Any, is_first: bool) -> Tensor:
    """Return the labels of a batch as objectives take them, after checks of what may be read."""
    labels = labels if labels.is_floating_point() else labels.long()
    num_classes = getattr(module.network, "num_classes", 0)
    if num_classes and (is_first or labels.device.type == "cpu"):  # reading from a GPU waits for it
        check_labels_of_batch(labels, num_classes, module.training)
        if module.training and hasattr(module, "check_trained_labels"):
            module.check_trained_labels(labels)
    if num_classes and labels.ndim == 2 and not (module.training and labels.is_floating_point()):
        labels = one_class_each(labels)
        if labels.ndim == 2 and hasattr(module, "check_labels"):
            module.check_labels(labels)
    return labels


def _note_range(plain: Tensor, mean: Any, std: Any) -> None:
    """Print a line if pixels, with their normalisation undone, are not those of images."""
    lowest, highest = plain.aminmax()
    if lowest < -OVERSHOOT or highest > 1 + OVERSHOOT:
        print(
            f"note: without the normalisation (mean {list(mean)}, std {list(std)}), pixels go from {lowest:.2f} to "
            f"{highest:.2f} and not from 0 to 1: check that the loader normalises by these numbers; pixels of "
            "image files, from 0 to 1, are normalised by them as well",
            flush=True,
        )


class UserBatches:
    """Reads the batches of users' own loaders. The first batch of each loader tells whether its images are normalised.

    On a CPU, a later batch that contradicts it is refused.

    Objectives normalise images themselves, so that a trained model takes photographs. The normalisation of a loader is
    therefore undone with the same mean and deviation, and the model sees what the loader gave.

    Attributes:
        normalised: Whether the images are normalised; None before the first batch.
        is_first: Whether the next batch is the first one of a loader.
        seen: Number of images that were predicted.
    """

    def __init__(self) -> None:
        self.normalised: bool | None = None
        self.is_first = True
        self.seen = 0

    def read(self, batch: Any, module: Any) -> tuple[Tensor, Tensor | None]:
        """Return images, bytes or floats in [0, 1], and labels of a batch that is on its device.

        Raises:
            ValueError: If images and labels cannot be told apart, the normalisation of images is not known, or one
                loader normalises them and another one does not.
        """
        images, labels = pair_of(batch)
        is_new = self.normalised is None
        is_first, self.is_first = self.is_first or is_new, False
        # A first batch of bright images may not tell.
        if is_first or (not self.normalised and _is_far_below_zero(images)):
            self._note_normalisation(images)
        labels = None if labels is None else _checked_labels(labels, module, is_first)
        if not self.normalised or images.dtype == torch.uint8:
            return images, labels
        mean, std = (module.hparams.get(name) for name in ("mean", "std"))
        if mean is None or std is None:
            raise ValueError(
                f"images go from {images.min():.2f} to {images.max():.2f}, so they are normalised, and their mean and "
                "std are not known: set the attributes mean and std of the data module, or add --model.mean [0.5] "
                "--model.std [0.5] with a number for each channel"
            )
        plain = images * module.std + module.mean
        if is_new and module.global_rank == 0:
            _note_range(plain, mean, std)
        return plain, labels

    def _note_normalisation(self, images: Tensor) -> None:
        """Note whether a batch is normalised; a ValueError if an earlier one, or that of another loader, differs."""
        found = are_normalised(images)
        if self.normalised is None:
            self.normalised = found
        if found != self.normalised and images.dtype != torch.uint8:  # bytes are known not to be
            are, were = ("are", "were not") if found else ("are not", "were")
            raise ValueError(
                f"the pixels of a batch go from {images.min():.2f} to {images.max():.2f}, so they {are} normalised, "
                f"and those of an earlier batch, or of another loader, {were}: normalise all or none"
                + ("" if found else ", and take larger batches if these images are only bright")
            )

    def take(self, batch: Any, module: Any) -> Any:
        """Return a batch on its device as the objective takes it; batches of our data modules stay as they are.

        For prediction, a batch has images, a name for each and messages, as from ``UnsortedImages``. Images of our
        other data modules are named by their file, and all other images are numbered.

        Raises:
            ValueError: If images of our data modules are predicted by several processes.
        """
        trainer = module._trainer
        if trainer is None or (isinstance(batch, tuple) and len(batch) == 3 and isinstance(batch[1], list)):
            return batch
        data = trainer.datamodule
        if isinstance(data, ImageDataModule) and not data.normalised and not trainer.predicting:
            return batch
        if isinstance(data, ImageDataModule) and trainer.predicting and trainer.world_size > 1:
            raise ValueError(
                f"{type(data).__name__} cannot predict with {trainer.world_size} devices, as rows would be out of order"
                " and padded: set devices to 1"
            )
        if isinstance(data, ImageDataModule) and data.normalised:  # it knows; bright images would not tell
            self.normalised, self.is_first = True, False
        images, labels = self.read(pair_of(batch)[0] if trainer.predicting else batch, module)  # to predict, no labels
        if not trainer.predicting:
            if labels is None and not module.needs_labels:
                labels = torch.full((len(images),), -1, device=images.device)  # no class
            if labels is None:
                raise ValueError("a batch has images and no labels: give pairs, or a dictionary with image and label")
            return images, labels
        first = self.seen if trainer.predict_loop.batch_progress.current.completed else 0
        self.seen = first + len(images)
        numbers = range(first, self.seen)
        if isinstance(data, ImageDataModule):
            return images, [data.sets["test"].name(number) for number in numbers], []
        return images, [str(trainer.world_size * number + module.global_rank) for number in numbers], []
