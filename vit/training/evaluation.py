"""Sums over an evaluation: loss, confusion matrix, the most confident mistakes."""

import torch
import torch.nn.functional as F
from torch import Tensor

MISTAKES = 32


class Evaluation:
    """Sums over the batches of an evaluation, exact for any number of processes and any size of the last batch.

    Rows with the label -1 are padding and do not count.
    """

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self.confusion = torch.zeros(num_classes, num_classes, dtype=torch.long, device=device)
        self.loss_sum = torch.zeros((), dtype=torch.double if device.type != "mps" else torch.float, device=device)
        self.correct_views = torch.zeros((), dtype=torch.long, device=device)
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
        wrong = torch.where(predicted != labels, confidence, -1.0)
        most, rows = wrong.topk(min(MISTAKES, len(wrong)))
        found = [
            (value, images[row].cpu(), int(labels[row]), int(predicted[row]))
            for value, row in zip(most.tolist(), rows.tolist(), strict=True)
            if value >= 0
        ]
        self.mistakes = sorted(self.mistakes + found, key=lambda mistake: -mistake[0])[:MISTAKES]

    def sums(self) -> list[Tensor]:
        """Return the tensors that are to be summed over processes."""
        return [self.confusion, self.loss_sum, self.correct_views]

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
