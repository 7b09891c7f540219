"""The scores of an evaluation with several labels an image, by torchmetrics; the most confident mistakes.

Letters in the shapes: N images, C classes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.aggregation import CatMetric
from torchmetrics.functional.classification import (
    binary_average_precision,
    binary_precision_recall_curve,
    multilabel_f1_score,
    multilabel_precision,
    multilabel_recall,
)

from vit.training.description import number_or_none

MISTAKES = 32
PADDING = -1  # label of the rows that fill up a batch


class Mistake(NamedTuple):
    """A label of an image that is wrong."""

    distance: float  # of the probability from the threshold
    image: Tensor
    number: int  # of the class
    probability: float
    is_there: bool  # whether the image shows the class


class MultilabelEvaluation:
    """The probabilities of an evaluation and their labels, of all processes together.

    Args:
        thresholds: Probability from which on an image counts as showing a class, (C,).
        device: Device of the sums.
    """

    def __init__(self, thresholds: Tensor, device: torch.device) -> None:
        self.thresholds = thresholds
        precise = torch.double if device.type != "mps" else torch.float
        self.loss_sum = torch.zeros((), dtype=precise, device=device)
        # Rows of C probabilities, then C labels, then C probabilities over views.
        self.rows = CatMetric(nan_strategy="disable").to(device)
        self.mistakes: list[Mistake] = []

    def update(self, logits: Tensor, labels: Tensor, images: Tensor, of_views: Tensor | None = None) -> None:
        """Add a batch: logits (B, C), labels (B, C) or class numbers (B,), images (B, C, H, W).

        ``of_views`` are the mean logits over several views of each image, (B, C).
        """
        real = (labels if labels.ndim == 1 else labels[:, 0]) != PADDING
        of_views = (logits if of_views is None else of_views)[real].float()
        logits, images = logits[real].float(), images[real]
        targets = one_row_each(labels[real], logits.shape[1])
        self.loss_sum += F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1).sum()
        probabilities = logits.sigmoid()
        self.rows.update(torch.cat([probabilities, targets, of_views.sigmoid()], dim=1))
        is_wrong = (probabilities >= self.thresholds) != targets.bool()
        distance = torch.where(is_wrong, (probabilities - self.thresholds).abs(), -1.0)
        for place in distance.flatten().topk(min(MISTAKES, distance.numel())).indices.tolist():
            row, number = divmod(place, logits.shape[1])
            far, probability = distance[row, number].item(), probabilities[row, number].item()
            if far >= 0:
                self.mistakes.append(Mistake(far, images[row].cpu(), number, probability, bool(targets[row, number])))
        self.mistakes = sorted(self.mistakes, key=lambda mistake: -mistake.distance)[:MISTAKES]

    def gather(self) -> None:
        """Collect the rows of all processes; each of them has to call this, once, after its last batch."""
        rows = self.rows.compute()
        if not len(rows):
            rows = self.thresholds.new_zeros(0, 3 * len(self.thresholds))
        self.probabilities, self.targets, self.of_views = rows.chunk(3, dim=1)

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
        """Mean over the classes with images of the area below precision over recall; NaN without any such class."""
        return self._average_precision(self.probabilities).nanmean().item()

    @property
    def mean_average_precision_views(self) -> float:
        """The same for the mean logits over views."""
        return self._average_precision(self.of_views).nanmean().item()

    def best_thresholds(self) -> Tensor:
        """Return for each class the probability of the highest F1, (C,); the one of now for classes without images."""
        best = self.thresholds.clone()
        for number in self._shown():
            precision, recall, thresholds = binary_precision_recall_curve(
                self.probabilities[:, number], self.targets[:, number].long()
            )
            f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-12)
            best[number] = thresholds[f1[: len(thresholds)].argmax()]
        return best

    def scores(self, class_names: Sequence[str]) -> dict[str, Any]:
        """Return the scores of the evaluation and of each class, ready for JSON.

        What has no value is None: the scores of a class without images. F1, precision and recall are those at
        ``thresholds``; their means are over the classes with images.
        """
        said, true = (self.probabilities >= self.thresholds).long(), self.targets.long()
        found = {"average_precision": self._average_precision(self.probabilities)}
        measures = {"f1": multilabel_f1_score, "precision": multilabel_precision, "recall": multilabel_recall}
        shown = self._shown()
        for name, measure in measures.items():
            found[name] = torch.full_like(found["average_precision"], torch.nan)
            if self.count:
                found[name] = measure(said, true, num_labels=len(self.thresholds), average="none", zero_division=0)
            hidden = [number for number in range(len(self.thresholds)) if number not in shown]
            found[name][hidden] = torch.nan
        support = true.sum(dim=0).tolist()
        return {
            "mean_average_precision": number_or_none(found["average_precision"].nanmean()),
            "count": self.count,
            "f1": number_or_none(found["f1"].nanmean()),
            "exact_match": number_or_none((said == true).all(dim=1).float().mean()),
            "loss": number_or_none(self.loss_sum / self.count),
            "classes": [
                {
                    "name": name,
                    **{score: number_or_none(values[number]) for score, values in found.items()},
                    "threshold": self.thresholds[number].item(),
                    "support": support[number],
                }
                for number, name in enumerate(class_names)
            ],
        }

    def _shown(self) -> list[int]:
        """Return the classes that some image shows."""
        return self.targets.any(dim=0).nonzero()[:, 0].tolist()

    def _average_precision(self, probabilities: Tensor) -> Tensor:
        found = torch.full_like(self.thresholds, torch.nan)
        for number in self._shown():
            found[number] = binary_average_precision(probabilities[:, number], self.targets[:, number].long())
        return found


def one_row_each(labels: Tensor, num_classes: int) -> Tensor:
    """Return a row of zeros and ones for each image: class numbers (B,), or such rows (B, C), as floats (B, C).

    >>> one_row_each(torch.tensor([2, 0]), 3)
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    return F.one_hot(labels, num_classes).float() if labels.ndim == 1 else labels.float()
