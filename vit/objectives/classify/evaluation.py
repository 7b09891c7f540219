"""Sums over an evaluation, and the scores that follow from them; the most confident mistakes."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MISTAKES = 32
BEST = 5  # predictions among which top-5 accuracy looks for the class
BINS = 15  # of confidence, as in Guo et al. 2017, "On Calibration of Modern Neural Networks"


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
        self.mistakes: list[tuple[float, Tensor, int, int]] = []

    def update(self, logits: Tensor, labels: Tensor, images: Tensor, of_views: Tensor | None = None) -> None:
        """Add a batch: logits (B, classes), labels (B,), images (B, C, H, W).

        ``of_views`` are the mean logits over several views of each image, (B, classes); they change only
        ``accuracy_views``.
        """
        if of_views is not None:
            self.correct_views += (of_views.argmax(dim=-1) == labels).sum()
        real = labels >= 0
        logits, labels, images = logits[real].float(), labels[real], images[real]
        self.loss_sum += F.cross_entropy(logits, labels, reduction="sum")
        confidence, predicted = logits.softmax(dim=-1).max(dim=-1)
        self.confusion.index_put_((labels, predicted), torch.ones_like(labels), accumulate=True)
        self.among_best += (logits.topk(min(BEST, logits.shape[1])).indices == labels[:, None]).sum()
        correct = predicted == labels
        bins = (BINS * confidence).long().clamp(0, BINS - 1)
        of_each = torch.stack([confidence, correct, torch.ones_like(confidence)])
        self.bins.index_add_(1, bins, of_each.to(self.bins))
        wrong = torch.where(correct, -1.0, confidence)
        most, rows = wrong.topk(min(MISTAKES, len(wrong)))
        found = [
            (value, images[row].cpu(), int(labels[row]), int(predicted[row]))
            for value, row in zip(most.tolist(), rows.tolist(), strict=True)
            if value >= 0
        ]
        self.mistakes = sorted(self.mistakes + found, key=lambda mistake: -mistake[0])[:MISTAKES]

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

    def scores(self, class_names: Sequence[str]) -> dict[str, Any]:
        """Return the scores of the evaluation and of each class, ready for JSON.

        What has no value is None: precision of a class that is never predicted, recall and F1 of a class without
        images, top-5 accuracy of five classes or fewer. Balanced accuracy is the mean recall of the classes with
        images; the calibration error is the expected one (ECE).
        """
        confusion, (confidence, correct, count) = self.confusion.cpu().double(), self.bins.cpu()
        hits, support, predicted = confusion.diagonal(), confusion.sum(dim=1), confusion.sum(dim=0)
        recall = hits / support
        f1 = torch.where(support > 0, 2 * hits / (support + predicted), torch.nan)
        classes = zip(class_names, hits / predicted, recall, f1, support.long().tolist(), strict=True)
        reliability = zip(confidence / count, correct / count, count.long().tolist(), strict=True)
        return {
            "accuracy": self.accuracy,
            "count": self.count,
            "balanced_accuracy": _number(recall.nanmean()),
            "top5_accuracy": self.among_best.item() / max(self.count, 1) if len(confusion) > BEST else None,
            "loss": _number(self.loss_sum / self.count),
            "calibration_error": _number((confidence - correct).abs().sum() / count.sum()),
            "reliability": [
                {"confidence": _number(mean), "accuracy": _number(share), "count": images}
                for mean, share, images in reliability
            ],
            "classes": [
                {"name": name, "precision": _number(p), "recall": _number(r), "f1": _number(f), "support": images}
                for name, p, r, f, images in classes
            ],
        }


def _number(value: Tensor) -> float | None:
    """Return a number that JSON has: NaN, such as that of 0 / 0, and infinity are None."""
    return value.item() if value.isfinite() else None
