"""The scores of an evaluation with several labels per image, and the most confident mistakes.

Letters in the shapes: N images, C classes.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional.classification import (
    binary_average_precision,
    binary_precision_recall_curve,
)

from vit.objectives.classify.curves import areas, threshold_between
from vit.objectives.classify.evaluation import MISTAKES
from vit.objectives.image_rows import ImageRows
from vit.support.precision import most_precise
from vit.training.description import number_or_none
from vit.training.evaluated_images import PADDING


class Mistake(NamedTuple):
    """A label of an image that is wrong."""

    distance: float  # of the probability from the threshold
    index: int  # of the image in the data set
    number: int  # of the class
    probability: float
    is_there: bool  # whether the image shows the class


class MultilabelEvaluation:
    """The probabilities of an evaluation and their labels, of all processes together.

    Args:
        thresholds: Lowest probability at which an image counts as showing a class, (C,).
        device: Device of the sums.
    """

    def __init__(self, thresholds: Tensor, device: torch.device) -> None:
        self.thresholds = thresholds
        precise = most_precise(device)
        self.loss_sum = torch.zeros((), dtype=precise, device=device)
        self.image_rows = ImageRows()
        no_images = torch.zeros(0, len(thresholds), device=device)
        self._add_rows(None, torch.zeros(0, dtype=torch.bool, device=device), no_images, no_images, no_images)

    def update(
        self, logits: Tensor, labels: Tensor, of_views: Tensor | None = None, index: Tensor | None = None
    ) -> None:
        """Add a batch: logits (B, C), labels (B, C) or class numbers (B,). The number -1 is padding.

        ``of_views`` are the mean logits over several views of each image, (B, C). ``index`` is the place of each image
        in the data set, (B,), or -1 for padding; None numbers them as they come, and takes rows of -1 for padding.
        """
        if labels.ndim == 1:
            real = labels != PADDING
        elif index is None:
            real = (labels != PADDING).any(dim=1)
        else:
            real = torch.ones_like(labels[:, 0], dtype=torch.bool)
        if index is not None:
            real &= index.to(real.device) != PADDING
        logits, of_views = logits.float(), (logits if of_views is None else of_views).float()
        if labels.ndim == 2 and not ((labels == 0) | (labels == 1))[real].all():
            raise ValueError(
                "the labels of an evaluation hold numbers besides 0 and 1, and an image shows a class or not: turn -1 "
                "into 0, round shares, as by labels >= 0.5, and leave out images whose labels are not known"
            )
        targets = one_row_each(labels.clamp(min=0), logits.shape[1])
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1)
        self.loss_sum += losses[real].sum()
        self._add_rows(index, real, targets, logits.sigmoid(), of_views.sigmoid())

    def _add_rows(
        self, index: Tensor | None, is_real: Tensor, targets: Tensor, probabilities: Tensor, of_views: Tensor
    ) -> None:
        self.image_rows.add(index, is_real, targets=targets, probabilities=probabilities, of_views=of_views)
        for known in ("rows", "areas"):
            self.__dict__.pop(known, None)

    @cached_property
    def rows(self) -> dict[str, Tensor]:
        """The results of each image, of all processes that called ``gather``, in the order of the data set.

        The columns are "index", "targets", "probabilities", and "of_views" (the probabilities over views).
        """
        return self.image_rows.gather()

    def gather(self) -> None:
        """Collect the rows of all processes; each of them has to call this after its last batch."""
        self.rows = self.image_rows.gather()

    @property
    def probabilities(self) -> Tensor:
        """Probability of each class for each image, (N, C)."""
        return self.rows["probabilities"]

    @property
    def targets(self) -> Tensor:
        """Whether each image shows each class, rows of 0. and 1., (N, C)."""
        return self.rows["targets"]

    @cached_property
    def areas(self) -> list[tuple[float | None, float | None]]:
        """Area below the ROC curve, and average precision, of each class; None if they are undefined."""
        columns = zip(self.probabilities.unbind(dim=1), self.targets.bool().unbind(dim=1), strict=True)
        return [areas(*column) for column in columns]

    @property
    def mistakes(self) -> list[Mistake]:
        """The wrong labels that are farthest from their threshold, the farthest first."""
        thresholds, number_of_classes = self.thresholds.cpu(), len(self.thresholds)
        is_wrong = (self.probabilities >= thresholds) != self.targets.bool()
        distance = torch.where(is_wrong, (self.probabilities - thresholds).abs(), -1.0)
        found = []
        for place in distance.flatten().argsort(descending=True, stable=True)[:MISTAKES].tolist():
            row, number = divmod(place, number_of_classes)
            if distance[row, number] >= 0:
                probability, is_there = self.probabilities[row, number].item(), bool(self.targets[row, number])
                index = int(self.rows["index"][row])
                found.append(Mistake(distance[row, number].item(), index, number, probability, is_there))
        return found

    def sums(self) -> list[Tensor]:
        """Return the tensors that are to be summed over processes."""
        return [self.loss_sum]

    @property
    def count(self) -> int:
        """Number of images."""
        return len(self.targets)

    @property
    def loss(self) -> float:
        """Mean binary cross-entropy per image and class, without weights and label smoothing."""
        return self.loss_sum.item() / max(self.count, 1)

    @property
    def mean_average_precision(self) -> float:
        """Mean of the average precision over the classes with images; NaN if there are none."""
        return self._average_precision(self.probabilities).nanmean().item()

    @property
    def mean_average_precision_views(self) -> float:
        """The same for the mean logits over views."""
        return self._average_precision(self.rows["of_views"]).nanmean().item()

    def best_thresholds(self) -> Tensor:
        """Return the threshold of the highest F1 for each class, (C,), between two probabilities.

        Classes without images keep the present one.
        """
        best = self.thresholds.clone()
        for number in self._scored():
            precision, recall, thresholds = binary_precision_recall_curve(
                self.probabilities[:, number], self.targets[:, number].long()
            )
            f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-12)
            best[number] = threshold_between(self.probabilities[:, number], thresholds[f1[: len(thresholds)].argmax()])
        return best

    def scores(self, class_names: Sequence[str]) -> dict[str, Any]:
        """Return the scores of the evaluation and of each class, ready for JSON.

        An undefined score is None: the scores of a class without images, or with probabilities that are not finite. F1,
        precision and recall are those at ``thresholds``; means are over the classes that have them.
        """
        said, true = self.probabilities >= self.thresholds.cpu(), self.targets.bool()
        support, predicted, hits = (shown.sum(dim=0).double() for shown in (true, said, said & true))
        average_precision = self._average_precision(self.probabilities)
        shares = {
            "f1": 2 * hits / (support + predicted),
            "precision": hits / predicted,
            "recall": hits / support,
        }
        found = {
            "average_precision": average_precision,
            "roc_auc": torch.tensor([torch.nan if area is None else area for area, _ in self.areas]),
        } | {name: share.masked_fill(average_precision.isnan(), torch.nan) for name, share in shares.items()}
        return {
            "mean_average_precision": number_or_none(found["average_precision"].nanmean()),
            "count": self.count,
            "classes_with_images": int(support.count_nonzero()),
            "roc_auc": number_or_none(found["roc_auc"].nanmean()),
            "f1": number_or_none(found["f1"].nanmean()),
            "exact_match": number_or_none((said == true).all(dim=1).float().mean()),
            "loss": number_or_none(self.loss_sum / self.count),
            "classes": [
                {
                    "name": name,
                    **{score: number_or_none(values[number]) for score, values in found.items()},
                    "threshold": self.thresholds[number].item(),
                    "support": int(support[number]),
                }
                for number, name in enumerate(class_names)
            ],
        }

    def _scored(self) -> list[int]:
        """Return the classes that some image shows, and whose probabilities are finite."""
        return (self.targets.any(dim=0) & self.probabilities.isfinite().all(dim=0)).nonzero()[:, 0].tolist()

    def _average_precision(self, probabilities: Tensor) -> Tensor:
        found = torch.full_like(self.thresholds, torch.nan, device="cpu")
        for number in self._scored():
            found[number] = binary_average_precision(probabilities[:, number], self.targets[:, number].long())
        return found


def one_row_each(labels: Tensor, num_classes: int) -> Tensor:
    """Return a row of zeros and ones for each image: class numbers (B,), or such rows (B, C) -> floats (B, C).

    >>> one_row_each(torch.tensor([2, 0]), 3)
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    return F.one_hot(labels, num_classes).float() if labels.ndim == 1 else labels.float()
