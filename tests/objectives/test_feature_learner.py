"""The evaluation of learners without labels, on loaders that users bring along."""

import pytest
import torch
from lightning import Trainer
from torch.utils.data import DataLoader, TensorDataset

from vit.objectives import MaskedAutoencoder


def validated(labels):
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 4, "in_channels": 1, "embed_dim": 12, "depth": 1, "num_heads": 3}
    learner = MaskedAutoencoder(**sizes, decoder_dim=8, decoder_heads=2, decoder_depth=1)
    images = torch.rand(len(labels), 1, 8, 8, generator=torch.manual_seed(1))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(accelerator="cpu", **quiet).validate(learner, DataLoader(TensorDataset(images, labels), 4), verbose=False)
    return learner.evaluation.scores()


CLASSES = torch.arange(10) % 2


@pytest.mark.parametrize(
    "labels",
    [torch.full((10,), -1), torch.linspace(-2, 2, 10), torch.full((10, 3), torch.nan), CLASSES - 1],
    ids=["without a label", "numbers", "missing numbers", "some without a label"],
)
def test_images_with_any_label_are_evaluated(labels):
    scores, expected = validated(labels), validated(torch.zeros(10).long())
    assert scores["count"] == 10
    assert scores == pytest.approx(expected | {"knn_accuracy": None})


def test_only_images_with_a_class_are_neighbours():
    labels = torch.cat([CLASSES, torch.full((5,), -1)])
    scores = validated(labels)
    assert scores["count"] == 15
    assert scores["knn_accuracy"] == pytest.approx(validated(CLASSES)["knn_accuracy"])
