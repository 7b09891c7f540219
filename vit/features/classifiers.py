"""Classifiers on frozen features: nearest neighbours and logistic regression.

Letters in the einops patterns: b test images, n training images, d channels.
"""

import warnings

import torch
import torch.nn.functional as F
from einops import einsum
from torch import Tensor

from vit.features.finite import check_finite
from vit.support.checks import check_positive_int

NEIGHBOURS, TEMPERATURE = 20, 0.07  # as in DINO (Caron et al. 2021)
ITERATIONS = 200  # of logistic regression, at most
PENALTIES = (0.01, 0.1, 1.0, 10.0)  # inverse strengths for logistic regression; cross-validation chooses one
AT_ONCE = 2**26  # cosines computed at once, a quarter of a gigabyte


def knn_accuracy(
    features: Tensor, labels: Tensor, test_features: Tensor, test_labels: Tensor, neighbours: int = NEIGHBOURS
) -> float:
    """Compute the accuracy of weighted nearest neighbours: (N, D), (N,), (B, D), (B,) -> share of the B images.

    Each neighbour votes with ``exp(cosine / 0.07)`` (Wu et al. 2018).

    >>> import torch
    >>> features = torch.eye(4)
    >>> knn_accuracy(features, torch.arange(4), features, torch.tensor([0, 1, 2, 0]), neighbours=1)
    0.75

    Args:
        features: Features of the training images.
        labels: Their classes.
        test_features: Features of other images.
        test_labels: Their classes.
        neighbours: Number of nearest training images that vote.
    """
    check_positive_int("neighbours", neighbours, "20 is usual")
    _check(features, labels, test_features, test_labels)
    known = F.normalize(features.float(), dim=1)
    correct = 0
    count = max(1, AT_ONCE // len(known))
    for part, targets in zip(test_features.split(count), test_labels.split(count), strict=True):
        cosines = einsum(F.normalize(part.float(), dim=1), known, "b d, n d -> b n")
        correct += (_vote(cosines, labels, neighbours) == targets).sum().item()
    return correct / len(test_labels)


def knn_accuracy_left_out(
    features: Tensor, labels: Tensor, neighbours: int = NEIGHBOURS, groups: Tensor | None = None
) -> float:
    """Compute the accuracy of weighted nearest neighbours among the other images: (N, D), (N,) -> share of the images.

    Each image is left out in turn, so that no second set of images is needed. The votes are those of ``knn_accuracy``.

    >>> import torch
    >>> features = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> knn_accuracy_left_out(features, torch.tensor([0, 0, 1, 0]), neighbours=1)
    0.5

    Args:
        features: Features of the images.
        labels: Their classes.
        neighbours: Number of nearest other images that vote.
        groups: Group number of each image, (N,); images of its own group have no vote. None for no groups.

    Raises:
        ValueError: If all images are of one group.
    """
    check_positive_int("neighbours", neighbours, "20 is usual")
    _check(features, labels, features, labels)
    groups = torch.arange(len(labels), device=features.device) if groups is None else groups.to(features.device)
    if len(groups.unique()) < 2:
        raise ValueError(
            f"all {len(labels)} images are of one group, so none has a neighbour outside of it: give two groups"
        )
    known = F.normalize(features.float(), dim=1)
    correct = 0
    count = max(1, AT_ONCE // len(known))
    for part, own, targets in zip(known.split(count), groups.split(count), labels.split(count), strict=True):
        cosines = einsum(part, known, "b d, n d -> b n")
        cosines[own[:, None] == groups] = -torch.inf  # a vote of zero
        correct += int((_vote(cosines, labels, neighbours) == targets).sum())
    return correct / len(labels)


def _vote(cosines: Tensor, labels: Tensor, neighbours: int) -> Tensor:
    """Return the class that the nearest images vote for: cosines (B, N), classes (N,) -> (B,)."""
    nearest, indices = cosines.topk(min(neighbours, cosines.shape[1]), dim=1)
    weights = ((nearest - 1) / TEMPERATURE).exp()
    votes = weights.new_zeros(len(weights), int(labels.max()) + 1)
    return votes.scatter_add_(1, labels[indices], weights).argmax(dim=1)


def linear_accuracy(features: Tensor, labels: Tensor, test_features: Tensor, test_labels: Tensor) -> float:
    """Compute the accuracy of a linear classifier on standardised features: (N, D), (N,), (B, D), (B,) -> share.

    It is logistic regression. Cross-validation on the training images, with at most three folds, chooses the penalty.
    It leaves out classes of one image. Without two classes of several images, C is 1. If the chosen classifier has not
    converged, a warning says so.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    _check(features, labels, test_features, test_labels)
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=ITERATIONS))
    counts = labels.bincount()
    several = counts[labels] > 1
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        if (counts > 1).sum() > 1:
            folds = min(3, int(counts[counts > 1].min()))
            search = GridSearchCV(classifier, {"logisticregression__C": PENALTIES}, cv=folds, refit=False)
            search.fit(features[several].double().numpy(), labels[several].numpy())
            classifier.set_params(**search.best_params_)
        classifier.fit(features.double().numpy(), labels.numpy())
    if classifier[-1].n_iter_.max() >= ITERATIONS:
        warnings.warn(
            f"the linear classifier has not converged after {ITERATIONS} iterations: its accuracy may still change",
            stacklevel=2,
        )
    return float(classifier.score(test_features.double().numpy(), test_labels.numpy()))


CLASSIFIERS = {"knn": knn_accuracy, "linear": linear_accuracy}


def _check(features: Tensor, labels: Tensor, test_features: Tensor, test_labels: Tensor) -> None:
    for images, classes in ((features, labels), (test_features, test_labels)):
        if len(images) != len(classes) or not len(images):
            raise ValueError(f"{len(images)} features have {len(classes)} labels: give one label for each image")
        if classes.ndim != 1 or classes.is_floating_point():
            raise ValueError(
                f"labels are {classes.dtype} of shape {tuple(classes.shape)}: give a whole number for each image, (N,)"
            )
        if missing := int((classes < 0).sum()):
            raise ValueError(f"{missing} images have no class (a label below 0): leave them out")
        check_finite(images)
    if features.shape[1] != test_features.shape[1]:
        raise ValueError(f"features have {features.shape[1]} and {test_features.shape[1]} channels: take one model")
    if len(labels.unique()) < 2:
        raise ValueError(f"all training images are of class {labels[0].item()}: give images of two classes or more")
