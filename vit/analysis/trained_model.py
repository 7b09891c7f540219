"""The subject of ``python -m vit.analysis``: a trained model, an untrained model of the same size, and images."""

import inspect
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import vit
from vit.analysis.accuracy import accuracy
from vit.analysis.labelled import Labelled, labelled_images
from vit.weights import read_checkpoint

RANKED_ON = 64  # training images; to rank by ablation, each head takes one pass over them
BATCH = 32  # test images; each point of a pruning curve times ten passes of one batch


@dataclass(frozen=True)
class TrainedModel:
    """A trained model, an untrained model of the same size, training images and test images."""

    model: nn.Module
    untrained: nn.Module  # with new random weights
    trained_on: Labelled
    held_out: Labelled
    data: str = ""  # name of the data set
    init: str = "glorot"  # initial weights of the training, the value of --model.init

    def facts(self) -> list[str]:
        """Return the facts that hold for all answers, in sentences."""
        right, count = accuracy(self.model, *self.held_out), len(self.held_out.labels)
        start = "Before training means a model of the same size with new random weights"
        if self.init != "glorot":
            start += f" after Glorot; the training itself started from {self.init} weights"
        return [
            f"{self.data}: right on {100 * right:.1f}\u00a0% of {count} test images. A difference of less than "
            f"{100 * margin(right, count):.1f} points may be chance.",
            f"{start}.",
        ]

    @property
    def chance(self) -> float:
        """The accuracy of a model that always answers with the most frequent class."""
        return self.held_out.labels.bincount().max().item() / len(self.held_out.labels)

    @property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """The images that accuracy is measured on."""
        images, labels = self.held_out
        return list(zip(images.split(BATCH), labels.split(BATCH), strict=True))

    @property
    def ranking(self) -> tuple[Tensor, Tensor]:
        """The images that heads are ranked by. Accuracy is measured on other images."""
        return self.trained_on.images[:RANKED_ON], self.trained_on.labels[:RANKED_ON]


def read_trained_model(checkpoint: str | Path, root: str | None, count: int) -> TrainedModel:
    """Return the model of a training checkpoint, up to ``count`` of its training images and as many test images.

    Raises:
        ValueError: If the checkpoint does not exist or has no classes, or its data fail (see ``labelled_images``).
    """
    model, contents = vit.load(checkpoint), read_checkpoint(checkpoint)
    if model.num_classes < 1:
        raise ValueError(
            f"{checkpoint} has no classes (num_classes 0), as the encoder of a reader: give a classifier's checkpoint"
        )
    arguments = contents["hyper_parameters"]
    names = inspect.signature(vit.VisionTransformer).parameters
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        untrained = vit.VisionTransformer(**{name: value for name, value in arguments.items() if name in names}).eval()
    data, trained_on, held_out = labelled_images(model, contents.get("data", {}), root, count)
    return TrainedModel(model, untrained, trained_on, held_out, data, arguments.get("init", "glorot"))


def margin(share: float, count: int) -> float:
    """Return two standard errors of the difference between two shares like this one, each of ``count`` images.

    The share is moved towards one half (Agresti and Coull 1998). So a share of 0 or 1 also has an error.

    >>> round(margin(0.9, 400), 3), round(margin(1.0, 400), 3)
    (0.043, 0.01)
    """
    moved = (share * count + 2) / (count + 4)
    return 2 * math.sqrt(2 * moved * (1 - moved) / (count + 4))
