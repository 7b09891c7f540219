"""The evaluation of features without a classifier: their rank, their spread, and their nearest neighbours."""

from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum, reduce
from torch import Tensor

from vit.features.classifiers import knn_accuracy_left_out
from vit.features.finite import check_finite
from vit.objectives.image_rows import ImageRows
from vit.support.precision import in_double, most_precise

MOST = 5000  # images whose features are compared in pairs; of more, a random sample
FEWEST = 16  # images; of fewer, no collapse is reported
LEAST_STD, LEAST_RANK = 0.02, 1.5  # below either, the features count as collapsed


def rank_of_features(features: Tensor) -> float:
    """Return the number of directions in which features vary (Roy and Vetterli 2007): (N, D) -> from 1 to D.

    It is the exponential of the entropy of the singular values of the centred features, divided by their sum. It is D
    if the features vary alike in all directions, and 1 if they vary in one direction or not at all. It can choose
    models without labels (Garrido et al. 2023, RankMe).

    >>> round(rank_of_features(torch.tensor([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]])), 3)
    2.0

    Raises:
        ValueError: If the features contain NaN or infinity.
    """
    check_finite(features)
    wide = in_double(features)
    centred = wide - reduce(wide, "n d -> d", "mean")
    values = torch.linalg.eigvalsh(einsum(centred, centred, "n d, n e -> d e")).clamp(min=0).sqrt()
    if values.sum() == 0:
        return 1.0
    return torch.special.entr(values / values.sum()).sum().exp().item()


def feature_std(features: Tensor) -> float:
    """Return the standard deviation of normalised features, over all channels: (N, D) -> from 0 to 1.

    It is 0 if all features have one direction or are zero, and 1 if their directions cancel out.

    >>> feature_std(torch.tensor([[3.0, 4.0], [6.0, 8.0]])), feature_std(torch.tensor([[1.0, 0.0], [-2.0, 0.0]]))
    (0.0, 1.0)
    """
    directions = F.normalize(in_double(features), dim=1)
    lengths = reduce(directions.square(), "n d -> d", "mean").sum()  # 1, but for features of zeros, which stay zeros
    return (lengths - reduce(directions, "n d -> d", "mean").square().sum()).clamp(min=0).sqrt().item()


def describe_collapse(scores: dict[str, Any]) -> str | None:
    """Return a warning if the features are nearly the same for all images; None otherwise, and for few images.

    >>> describe_collapse({"count": 100, "effective_rank": 30.0, "feature_std": 0.4})
    """
    if scores.get("count", 0) < FEWEST or not {"effective_rank", "feature_std"} <= scores.keys():
        return None
    rank, std = scores["effective_rank"], scores["feature_std"]
    if rank >= LEAST_RANK and std >= LEAST_STD:
        return None
    return (
        f"the features have collapsed: they are nearly the same for all images (effective rank {rank:.2f}, standard "
        f"deviation {std:.3f})"
    )


class FeatureEvaluation:
    """The loss of an evaluation, and the features of its images, of all processes together."""

    def __init__(self, num_features: int, device: torch.device) -> None:
        precise = most_precise(device)
        self.loss_sum = torch.zeros((), dtype=precise, device=device)
        self.images = torch.zeros((), dtype=torch.long, device=device)
        self.image_rows = ImageRows()
        empty = torch.zeros(0, device=device)  # so that an evaluation of no images has all columns
        features = torch.zeros(0, num_features, device=device)
        self.image_rows.add(None, empty.bool(), features=features, label=empty.long())

    def update(
        self, features: Tensor, losses: Tensor, labels: Tensor, is_real: Tensor, index: Tensor | None = None
    ) -> None:
        """Add a batch.

        Args:
            features: Features of all images, (B, D).
            losses: The loss of each image that is real, (R,).
            labels: Classes, (B,), -1 for images without one. Other labels, (B, ...), are ignored.
            is_real: Which images are not padding, boolean (B,).
            index: Place of each image in the data set, (B,); None numbers them as they come.
        """
        self.loss_sum += losses.sum(dtype=self.loss_sum.dtype)
        self.images += is_real.sum()
        classes = labels if labels.ndim == 1 and not labels.is_floating_point() else torch.zeros_like(is_real).long()
        self.image_rows.add(index, is_real, features=features.float(), label=classes)
        self.__dict__.pop("rows", None)

    @cached_property
    def rows(self) -> dict[str, Tensor]:
        """Index, features and label of each image, in the order of the data set; of many, a sample of ``MOST``."""
        rows = self.image_rows.gather()
        drawn = torch.randperm(len(rows["index"]), generator=torch.Generator().manual_seed(0))[:MOST].sort().values
        return {name: values[drawn] for name, values in rows.items()}

    def gather(self, groups: Tensor | None = None) -> None:
        """Collect the features of all processes, and evaluate them; each process calls this after its last batch.

        ``groups`` (N,) has the group number of each image of the data set; no image is judged by its own group.
        """
        features, labels = self.rows["features"], self.rows["label"]
        groups = torch.arange(len(labels)) if groups is None else groups[self.rows["index"].cpu()]
        self.feature_std = feature_std(features)
        # The rank of collapsed features is that of their rounding, which may be high.
        self.effective_rank = 1.0 if self.feature_std < LEAST_STD else rank_of_features(features)
        has_class = labels >= 0
        features, labels, groups = features[has_class], labels[has_class], groups[has_class]
        are_several = len(labels.unique()) > 1 and len(groups.unique()) > 1
        self.knn_accuracy = knn_accuracy_left_out(features, labels, groups=groups) if are_several else None

    def sums(self) -> list[Tensor]:
        """Return the tensors that are to be summed over processes."""
        return [self.loss_sum, self.images]

    @property
    def count(self) -> int:
        """Number of images."""
        return int(self.images)

    @property
    def loss(self) -> float:
        """Mean loss of an image."""
        return self.loss_sum.item() / max(self.count, 1)

    def scores(self) -> dict[str, Any]:
        """Return the scores of the evaluation, ready for JSON; the accuracy of neighbours is None without classes."""
        return {
            "count": self.count,
            "loss": self.loss,
            "effective_rank": self.effective_rank,
            "feature_std": self.feature_std,
            "knn_accuracy": self.knn_accuracy,
        }
