"""ROC and precision-recall curves of each class against the rest, their areas, and a threshold for two classes.

Letters in the shapes: N images, C classes.
"""

from typing import NamedTuple

from torch import Tensor
from torchmetrics.functional.classification import (
    binary_auroc,
    binary_average_precision,
    binary_precision_recall_curve,
    binary_roc,
)


class ClassCurves(NamedTuple):
    """The curves of a class: each point is a threshold of its probability."""

    false_positive_rate: Tensor
    true_positive_rate: Tensor
    precision: Tensor
    recall: Tensor


def has_curves(probabilities: Tensor, is_positive: Tensor) -> bool:
    """Return whether a class has curves: they need images with and without it, and finite probabilities, (N,)."""
    return bool(is_positive.any() and not is_positive.all() and probabilities.isfinite().all())


def areas(probabilities: Tensor, is_positive: Tensor) -> tuple[float | None, float | None]:
    """Return the area below the ROC curve and the average precision of a class; None if they are undefined.

    Args:
        probabilities: Of the class, (N,).
        is_positive: Whether each image is of the class, (N,).
    """
    if not has_curves(probabilities, is_positive):
        return None, None
    true = is_positive.long()
    return binary_auroc(probabilities, true).item(), binary_average_precision(probabilities, true).item()


def curves(probabilities: Tensor, is_positive: Tensor) -> ClassCurves:
    """Return the curves of a class for which ``has_curves`` is true: (N,), (N,)."""
    true = is_positive.long()
    false_positives, true_positives, _ = binary_roc(probabilities, true)
    precision, recall, _ = binary_precision_recall_curve(probabilities, true)
    return ClassCurves(false_positives, true_positives, precision, recall)


def youden_threshold(probabilities: Tensor, is_positive: Tensor) -> float | None:
    """Return the threshold of the probability that has the largest Youden's J; None if the class has no curves.

    J is sensitivity + specificity - 1 (Youden 1950). Unlike F1 it depends neither on the share of positive images nor
    on which of the two classes is called positive. The threshold is in the middle between the two probabilities that it
    separates, so that J is the same on these images.

    >>> import torch
    >>> youden_threshold(torch.tensor([0.1, 0.25, 0.5, 0.9]), torch.tensor([False, False, True, True]))
    0.375

    Args:
        probabilities: Of the positive class, (N,).
        is_positive: Whether each image is of that class, (N,).
    """
    if not has_curves(probabilities, is_positive):
        return None
    false_positives, true_positives, thresholds = binary_roc(probabilities, is_positive.long())
    # The first point, above all probabilities, is no threshold between two of them.
    return float(threshold_between(probabilities, thresholds[1:][(true_positives - false_positives)[1:].argmax()]))


def threshold_between(probabilities: Tensor, lowest: Tensor) -> Tensor:
    """Return the middle of the lowest positive probability and the next one below it, a threshold far from both.

    >>> import torch
    >>> threshold_between(torch.tensor([0.1, 0.25, 0.5, 0.9]), torch.tensor(0.5))
    tensor(0.3750)
    """
    below = probabilities[probabilities < lowest]
    middle = (lowest + below.max()) / 2 if len(below) else lowest
    # Between neighbouring floats there is no number: the middle is rounded to one of them.
    return middle if (middle > below).all() else lowest


def threshold_scores(probabilities: Tensor, is_positive: Tensor, threshold: float) -> dict[str, float | None]:
    """Return sensitivity, specificity and precision at a threshold; None for a share of no images.

    >>> import torch
    >>> threshold_scores(torch.tensor([0.1, 0.6, 0.4, 0.9]), torch.tensor([False, False, True, True]), 0.5)
    {'sensitivity': 0.5, 'specificity': 0.5, 'precision': 0.5}
    """
    said = probabilities >= threshold
    shares = {
        "sensitivity": (said, is_positive),
        "specificity": (~said, ~is_positive),
        "precision": (is_positive, said),
    }
    return {
        name: (right & among).sum().item() / among.sum().item() if among.any() else None
        for name, (right, among) in shares.items()
    }
