"""Sums over an evaluation, what it found of each image, and the scores that follow; the most confident mistakes."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.objectives.classify.curves import areas, threshold_scores, youden_threshold
from vit.objectives.classify.image_rows import PADDING, ImageRows
from vit.training.description import number_or_none

MISTAKES = 32
BEST = 5  # predictions among which top-5 accuracy looks for the class
BINS = 15  # of confidence, as in Guo et al. 2017, "On Calibration of Modern Neural Networks"
POSITIVE = 1  # of two classes, the one whose probability has a threshold


class Mistake(NamedTuple):
    """An image whose class is not the predicted one."""

    confidence: float
    index: int  # in the data set
    label: int
    predicted: int


class Evaluation:
    """Sums over the batches of an evaluation, exact for any number of processes and any size of the last batch.

    Rows with the label -1 are padding and do not count.
    """

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self.confusion = torch.zeros(num_classes, num_classes, dtype=torch.long, device=device)
        precise = torch.double if device.type != "mps" else torch.float
        self.loss_sum = torch.zeros((), dtype=precise, device=device)
        self.correct_views = torch.zeros((), dtype=torch.long, device=device)
        self.among_best = torch.zeros((), dtype=torch.long, device=device)
        # Of each bin: sum of the confidences, number of correct predictions, number of images. The calibration error of
        # torchmetrics keeps the confidence of every image instead.
        self.bins = torch.zeros(3, BINS, dtype=precise, device=device)
        self.image_rows = ImageRows()
        no_images = torch.zeros(0, num_classes, device=device)
        self._add_rows(None, torch.zeros(0, dtype=torch.long, device=device), no_images, no_images)

    def update(
        self, logits: Tensor, labels: Tensor, of_views: Tensor | None = None, index: Tensor | None = None
    ) -> None:
        """Add a batch: logits (B, classes), labels (B,).

        ``of_views`` are the mean logits over several views of each image, (B, classes); they change no score but
        ``accuracy_views``. ``index`` is the place of each image in the data set, (B,); None counts them.
        """
        if of_views is not None:
            self.correct_views += (of_views.argmax(dim=-1) == labels).sum()
        probabilities = logits.float().softmax(dim=-1)
        self._add_rows(
            index, labels, probabilities, probabilities if of_views is None else of_views.float().softmax(dim=-1)
        )
        real = labels != PADDING
        logits, labels = logits[real].float(), labels[real]
        self.loss_sum += F.cross_entropy(logits, labels, reduction="sum")
        confidence, predicted = probabilities[real].max(dim=-1)
        self.confusion.index_put_((labels, predicted), torch.ones_like(labels), accumulate=True)
        self.among_best += (logits.topk(min(BEST, logits.shape[1])).indices == labels[:, None]).sum()
        correct = predicted == labels
        bins = (BINS * confidence).long().clamp(0, BINS - 1)
        of_each = torch.stack([confidence, correct, torch.ones_like(confidence)])
        self.bins.index_add_(1, bins, of_each.to(self.bins))

    def _add_rows(self, index: Tensor | None, labels: Tensor, probabilities: Tensor, of_views: Tensor) -> None:
        self.image_rows.add(index, labels != PADDING, label=labels, probabilities=probabilities, of_views=of_views)
        for known in ("rows", "areas"):
            self.__dict__.pop(known, None)

    @cached_property
    def rows(self) -> dict[str, Tensor]:
        """What was found of each image of the processes that called ``gather``, in the order of the data set.

        The columns are "index", "label", "probabilities", and "of_views", the probabilities over views.
        """
        return self.image_rows.gather()

    def gather(self) -> None:
        """Collect the rows of all processes; each of them has to call this after its last batch."""
        self.rows = self.image_rows.gather()

    @cached_property
    def areas(self) -> list[tuple[float | None, float | None]]:
        """Area below the ROC curve, and average precision, of each class; None where they have no value."""
        probabilities, label = self.rows["probabilities"], self.rows["label"]
        return [areas(probabilities[:, number], label == number) for number in range(probabilities.shape[1])]

    @property
    def mistakes(self) -> list[Mistake]:
        """The most confident mistakes, the first one first."""
        confidence, predicted = self.rows["probabilities"].max(dim=-1)
        wrong = torch.where(predicted == self.rows["label"], -1.0, confidence)
        order = wrong.argsort(descending=True, stable=True)[:MISTAKES]
        columns = (wrong, self.rows["index"], self.rows["label"], predicted)
        found = zip(*(column[order].tolist() for column in columns), strict=True)
        return [Mistake(*row) for row in found if row[0] >= 0]

    def best_threshold(self) -> float | None:
        """Return the threshold of the second of two classes that has the largest Youden's J; None without one."""
        return youden_threshold(self.rows["probabilities"][:, POSITIVE], self.rows["label"] == POSITIVE)

    def sums(self) -> list[Tensor]:
        """Return the tensors that are to be summed over processes."""
        return [self.confusion, self.loss_sum, self.correct_views, self.among_best, self.bins]

    @property
    def count(self) -> int:
        """Number of images."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """Share of the images whose class is the predicted one."""
        return self.confusion.diagonal().sum().item() / max(self.count, 1)

    @property
    def accuracy_views(self) -> float:
        """Share of the images whose class is the one predicted from the mean over their views."""
        return self.correct_views.item() / max(self.count, 1)

    @property
    def loss(self) -> float:
        """Mean cross-entropy per image, without label smoothing."""
        return self.loss_sum.item() / max(self.count, 1)

    def scores(self, class_names: Sequence[str], threshold: float | None = None) -> dict[str, Any]:
        """Return the scores of the evaluation and of each class, ready for JSON; of two classes, of a threshold, too.

        What has no value is None: all scores of a class without images, precision of a class that is never predicted,
        areas if all images are of one class, top-5 accuracy of five classes or fewer. Balanced accuracy and the areas
        below the curves are means over the classes with images; the calibration error is the expected one (ECE).
        """
        confusion, (confidence, correct, count) = self.confusion.cpu().double(), self.bins.cpu()
        hits, support, predicted = confusion.diagonal(), confusion.sum(dim=1), confusion.sum(dim=0)
        recall = hits / support
        precision, f1 = (
            torch.where(support > 0, share, torch.nan) for share in (hits / predicted, 2 * hits / (support + predicted))
        )
        classes = zip(class_names, precision, recall, f1, self.areas, support.long().tolist(), strict=True)
        reliability = zip(confidence / count, correct / count, count.long().tolist(), strict=True)
        scores = {
            "accuracy": self.accuracy,
            "count": self.count,
            "classes_with_images": int((support > 0).sum()),
            "balanced_accuracy": number_or_none(recall.nanmean()),
            "top5_accuracy": self.among_best.item() / max(self.count, 1) if len(confusion) > BEST else None,
            "loss": number_or_none(self.loss_sum / self.count),
            "roc_auc": mean_of_known([roc for roc, _ in self.areas]),
            "average_precision": mean_of_known([average for _, average in self.areas]),
            "calibration_error": number_or_none((confidence - correct).abs().sum() / count.sum()),
            "reliability": [
                {"confidence": number_or_none(mean), "accuracy": number_or_none(share), "count": images}
                for mean, share, images in reliability
            ],
            "classes": [
                {
                    "name": name,
                    **{score: number_or_none(value) for score, value in (("precision", p), ("recall", r), ("f1", f))},
                    "roc_auc": roc,
                    "average_precision": average,
                    "support": images,
                }
                for name, p, r, f, (roc, average), images in classes
            ],
        }
        if len(hits) == 2:
            scores["threshold"] = self._threshold_scores(class_names[POSITIVE], threshold)
        return scores

    def _threshold_scores(self, name: str, threshold: float | None) -> dict[str, Any] | None:
        if threshold is None:
            return None
        found = threshold_scores(self.rows["probabilities"][:, POSITIVE], self.rows["label"] == POSITIVE, threshold)
        return {"class": name, "value": threshold, **found}


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are there; None if there are none.

    >>> mean_of_known([0.5, None, 1.0]), mean_of_known([None])
    (0.75, None)
    """
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
