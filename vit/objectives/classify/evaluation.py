"""The evaluation of a classifier: sums over batches, results of each image, scores, the most confident mistakes."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vit.objectives.classify.curves import areas, threshold_scores, youden_threshold
from vit.objectives.image_rows import ImageRows
from vit.support.precision import most_precise
from vit.training.description import number_or_none
from vit.training.evaluated_images import PADDING

MISTAKES = 32
BEST = 5  # predictions among which top-5 accuracy looks for the class
MOST_KEPT = 1000  # most classes of which all probabilities are kept; of more, only the five best of each image
MOST_CONFUSED = 20  # pairs of classes in the scores
MOST_ROWS = 200  # classes in the scores; of more, the 100 lowest and the 100 highest
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

    Rows with the label or the index -1 are padding and do not count.
    """

    def __init__(self, num_classes: int, device: torch.device) -> None:
        # For each class: number of its images, of its predictions, and of its correct predictions.
        self.of_classes = torch.zeros(3, num_classes, dtype=torch.long, device=device)
        precise = most_precise(device)
        self.loss_sum = torch.zeros((), dtype=precise, device=device)
        self.correct_views = torch.zeros((), dtype=torch.long, device=device)
        self.among_best = torch.zeros((), dtype=torch.long, device=device)
        # For each bin: sum of the confidences, number of correct predictions, number of images. The calibration error
        # of torchmetrics would keep the confidence of every image.
        self.bins = torch.zeros(3, BINS, dtype=precise, device=device)
        self.image_rows = ImageRows()
        self.update(torch.zeros(0, num_classes, device=device), torch.zeros(0, dtype=torch.long, device=device))

    def update(
        self, logits: Tensor, labels: Tensor, of_views: Tensor | None = None, index: Tensor | None = None
    ) -> None:
        """Add a batch: logits (B, classes), labels (B,).

        ``of_views`` are the mean logits over several views of each image, (B, classes); they change no score but
        ``accuracy_views``. ``index`` is the place of each image in the data set, (B,); None numbers them as they come.
        """
        real = labels != PADDING
        if index is not None:
            real &= index.to(real.device) != PADDING
        if of_views is not None:
            self.correct_views += (of_views.argmax(dim=-1) == labels)[real].sum()
        probabilities = logits.float().softmax(dim=-1)
        best, classes = ranked(probabilities)
        columns = {"label": labels, "best": best, "classes": classes}
        if probabilities.shape[1] <= MOST_KEPT:
            columns["probabilities"] = probabilities
        if of_views is not None:
            over_views = ranked(of_views.float().softmax(dim=-1))
            columns |= dict(zip(("best_over_views", "classes_over_views"), over_views, strict=True))
        self.image_rows.add(index, real, **columns)
        for known in ("rows", "areas"):
            self.__dict__.pop(known, None)
        logits, labels, confidence, classes = logits[real].float(), labels[real], best[real, 0], classes[real]
        self.loss_sum += F.cross_entropy(logits, labels, reduction="sum")
        predicted = classes[:, 0]
        correct = predicted == labels
        for counts, of_images in zip(self.of_classes, (labels, predicted, labels[correct]), strict=True):
            counts.index_add_(0, of_images, torch.ones_like(of_images))
        self.among_best += (classes == labels[:, None]).sum()
        bins = (BINS * confidence).long().clamp(0, BINS - 1)
        of_each = torch.stack([confidence, correct, torch.ones_like(confidence)])
        self.bins.index_add_(1, bins, of_each.to(self.bins))

    @cached_property
    def rows(self) -> dict[str, Tensor]:
        """The results of each image, of all processes that called ``gather``, in the order of the data set.

        The columns are "index", "label", "best" and "classes" (the five highest probabilities and their classes), and
        "best_over_views" and "classes_over_views". With at most 1,000 classes, "probabilities" has all of them.
        """
        return self.image_rows.gather()

    def gather(self) -> None:
        """Collect the rows of all processes; each of them has to call this after its last batch."""
        self.rows = self.image_rows.gather()

    @cached_property
    def areas(self) -> list[tuple[float | None, float | None]]:
        """Area below the ROC curve, and average precision, of each class; None if they are undefined."""
        if "probabilities" not in self.rows:
            return [(None, None)] * self.of_classes.shape[1]
        probabilities, label = self.rows["probabilities"], self.rows["label"]
        return [areas(probabilities[:, number], label == number) for number in range(probabilities.shape[1])]

    @property
    def mistakes(self) -> list[Mistake]:
        """The most confident mistakes, the first one first."""
        confidence, predicted = self.rows["best"][:, 0], self.rows["classes"][:, 0]
        wrong = torch.where(predicted == self.rows["label"], -1.0, confidence)
        order = wrong.argsort(descending=True, stable=True)[:MISTAKES]
        columns = (wrong, self.rows["index"], self.rows["label"], predicted)
        found = zip(*(column[order].tolist() for column in columns), strict=True)
        return [Mistake(*row) for row in found if row[0] >= 0]

    @property
    def confusion(self) -> Tensor:
        """Number of images of each class (rows) that are predicted as each class (columns), (C, C)."""
        count = self.of_classes.shape[1]
        pairs = self.rows["label"] * count + self.rows["classes"][:, 0]
        return rearrange(pairs.bincount(minlength=count**2), "(label predicted) -> label predicted", label=count)

    @property
    def confusions(self) -> list[tuple[int, int, int]]:
        """The most frequent confusions: true class, predicted class, and number of images."""
        label, predicted = self.rows["label"], self.rows["classes"][:, 0]
        pairs, counts = torch.stack([label, predicted])[:, label != predicted].unique(dim=1, return_counts=True)
        order = counts.argsort(descending=True, stable=True)[:MOST_CONFUSED]
        return list(zip(*pairs[:, order].tolist(), counts[order].tolist(), strict=True))

    def best_threshold(self) -> float | None:
        """Return the threshold of the second of two classes with the largest Youden's J; None if it has no curves."""
        return youden_threshold(self.rows["probabilities"][:, POSITIVE], self.rows["label"] == POSITIVE)

    def sums(self) -> list[Tensor]:
        """Return the tensors that are to be summed over processes."""
        return [self.of_classes, self.loss_sum, self.correct_views, self.among_best, self.bins]

    @property
    def count(self) -> int:
        """Number of images."""
        return int(self.of_classes[0].sum())

    @property
    def accuracy(self) -> float:
        """Share of the images whose class is the predicted one."""
        return self.of_classes[2].sum().item() / max(self.count, 1)

    @property
    def accuracy_views(self) -> float:
        """Share of the images whose class is the one predicted from the mean over their views."""
        return self.correct_views.item() / max(self.count, 1)

    @property
    def loss(self) -> float:
        """Mean cross-entropy per image, without label smoothing."""
        return self.loss_sum.item() / max(self.count, 1)

    def scores(self, class_names: Sequence[str], threshold: float | None = None) -> dict[str, Any]:
        """Return the scores of the evaluation and of each class, ready for JSON; for two classes, also at a threshold.

        An undefined score is None: all scores of a class without images, precision of a class that is never predicted,
        areas if all images are of one class or there are more than 1,000 classes, top-5 accuracy of five classes or
        fewer. With more than 1,000 classes, "classes" has those of the lowest and of the highest F1. Balanced accuracy
        and the areas below the curves are means over the classes with images; the calibration error is the expected
        one (ECE).
        """
        support, _, hits = self.of_classes.cpu().double()
        confidence, correct, count = self.bins.cpu()
        of_each = self._of_each_class(class_names)
        scores = {
            "accuracy": self.accuracy,
            "count": self.count,
            "class_count": len(hits),
            "classes_with_images": int((support > 0).sum()),
            "largest_class": int(support.max()),
            "balanced_accuracy": number_or_none((hits / support).nanmean()),
            "top5_accuracy": self.among_best.item() / max(self.count, 1) if len(hits) > BEST else None,
            "loss": number_or_none(self.loss_sum / self.count),
            "roc_auc": mean_of_known([roc for roc, _ in self.areas]),
            "average_precision": mean_of_known([average for _, average in self.areas]),
            "calibration_error": number_or_none((confidence - correct).abs().sum() / count.sum()),
            "reliability": self._reliability(),
            "classes": of_each if len(hits) <= MOST_KEPT else lowest_and_highest(of_each, "f1"),
            "confusions": self._named_confusions(class_names),
        }
        if len(hits) == 2:
            scores["threshold"] = self._threshold_scores(class_names[POSITIVE], threshold)
        return scores

    def _of_each_class(self, names: Sequence[str]) -> list[dict[str, Any]]:
        support, predicted, hits = self.of_classes.cpu().double()
        shares = {"precision": hits / predicted, "recall": hits / support, "f1": 2 * hits / (support + predicted)}
        known = {name: torch.where(support > 0, share, torch.nan) for name, share in shares.items()}
        return [
            {
                "name": name,
                **{score: number_or_none(values[number]) for score, values in known.items()},
                "roc_auc": self.areas[number][0],
                "average_precision": self.areas[number][1],
                "support": int(support[number]),
            }
            for number, name in enumerate(names)
        ]

    def _reliability(self) -> list[dict[str, Any]]:
        confidence, correct, count = self.bins.cpu()
        rows = zip(confidence / count, correct / count, count.long().tolist(), strict=True)
        return [
            {"confidence": number_or_none(mean), "accuracy": number_or_none(share), "count": images}
            for mean, share, images in rows
        ]

    def _named_confusions(self, names: Sequence[str]) -> list[dict[str, Any]]:
        support = self.of_classes[0].tolist()
        return [
            {"class": names[label], "predicted": names[other], "count": images, "share": images / support[label]}
            for label, other, images in self.confusions
        ]

    def _threshold_scores(self, name: str, threshold: float | None) -> dict[str, Any] | None:
        if threshold is None:
            return None
        found = threshold_scores(self.rows["probabilities"][:, POSITIVE], self.rows["label"] == POSITIVE, threshold)
        return {"class": name, "value": threshold, **found}


def ranked(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Return the five highest probabilities of each image and their classes, lower classes first if equal: (B, C)."""
    # Stable, as argmax is: the first class of the highest probability is the predicted one.
    values, classes = probabilities.sort(dim=1, descending=True, stable=True)
    return values[:, :BEST].clone(), classes[:, :BEST].clone()  # a slice would keep all of them in memory


def lowest_and_highest(rows: Sequence[dict[str, Any]], score: str) -> list[dict[str, Any]]:
    """Return the rows of classes in the order of a score, those without one last.

    Of more than 200 rows, those of the lowest and of the highest score are returned, a hundred each.
    """
    ranked = sorted(rows, key=lambda row: math.inf if row[score] is None else row[score])
    if len(ranked) <= MOST_ROWS:
        return ranked
    known, half = [row for row in ranked if row[score] is not None], MOST_ROWS // 2
    return [*known[:half], *known[half:][-half:]]


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if all are.

    >>> mean_of_known([0.5, None, 1.0]), mean_of_known([None])
    (0.75, None)
    """
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
