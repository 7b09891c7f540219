"""The subject of ``python -m vit.analysis``: a trained model, one of the same size before training, and images."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vit
from vit.analysis.accuracy import accuracy
from vit.analysis.intervals import interval_of_share
from vit.analysis.labelled import Labelled, is_split_of_training, labelled_images
from vit.data.module import SPLIT
from vit.model.mimetic import mimetic_attention
from vit.weights import read_checkpoint
from vit.weights.checkpoint import is_ours
from vit.weights.tensor_files import read_file

RANKED_ON = 64  # training images; to rank by ablation, each head takes one pass over them
BATCH = 32  # test images; each point of a pruning curve times several passes of one batch


@dataclass(frozen=True)
class TrainedModel:
    """A trained model, an untrained model of the same size, training images and test images."""

    model: nn.Module
    untrained: nn.Module  # with new weights, drawn as those of the training if that is known
    trained_on: Labelled
    held_out: Labelled
    data: str = ""  # name of the data set
    init: str | None = None  # initial weights of the training, the value of --model.init; None if not known
    are_named: bool = True  # whether the model names its classes
    is_split_of_training: bool = True  # whether the training left out the held-out images

    def facts(self) -> list[str]:
        """Return the facts that hold for all answers, in sentences."""
        count = len(self.held_out.labels)
        right = interval_of_share(accuracy(self.model, *self.held_out), count)
        start = "Before training means a model of the same size with new random weights"
        if self.init is not None:
            start += f", drawn as for this training (init {self.init})"
        else:
            start += " (init glorot); how this training began is not known, and may explain a part of what differs"
        of = "held out of the training" if self.is_split_of_training else "that the model may have been trained on"
        facts = [
            f"{self.data}: right on {right.as_percent()} of {count} images {of}.",
            "Intervals are of 95 %. If that of a difference includes zero, the two cannot be told apart by these "
            "images. Layers, heads and tokens are numbered from 0.",
            f"{start}.",
        ]
        if not self.are_named:
            facts.append(
                "The model does not name its classes: the class folders were taken in the order of their names."
            )
        return facts

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


def read_trained_model(source: str | Path, root: str | None, count: int) -> TrainedModel:
    """Return a trained model, up to ``count`` of its training images and as many test images.

    Args:
        source: What ``vit.load`` takes: a training checkpoint, a file of weights of any library, or a name.
        root: Folder of class folders. None takes the data that the training checkpoint names.
        count: Largest number of images of each kind.

    Raises:
        ValueError: If there is no such model, it has no classes, or its data fail (see ``labelled_images``).
    """
    model, noted = vit.load(source), _noted(source)
    if model.num_classes < 1:
        raise ValueError(
            f"{source} has no classes (num_classes 0), as the encoder of a reader: give a classifier's checkpoint"
        )
    of_data, init = noted.get("data", {}), noted.get("hyper_parameters", {}).get("init")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        untrained = vit.VisionTransformer(**model.config).eval()
        if init == "mimetic":
            mimetic_attention(untrained)
    data, trained_on, held_out, checksum = labelled_images(model, of_data, root, count)
    are_named = bool(model.pretrained_cfg["class_names"])
    # A changed folder has another split. Early checkpoints do not note theirs.
    splits = noted.get(SPLIT) or {"test": checksum}
    is_same = is_split_of_training(of_data, root) and checksum in (splits.get("test"), splits.get("val"))
    return TrainedModel(model, untrained, trained_on, held_out, data, init, are_named, is_same)


def _noted(source: str | Path) -> Mapping[str, Any]:
    """Return the contents of a training checkpoint of this package. They are empty for all other sources."""
    if Path(source).suffix != ".ckpt":
        return {}
    contents, _ = read_file(Path(source))
    return read_checkpoint(source) if isinstance(contents, Mapping) and is_ours(contents) else {}
