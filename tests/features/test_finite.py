"""Features that are no numbers have no neighbours, no classes and no directions."""

import pytest
import torch

from vit.features import knn_accuracy, linear_accuracy, pca
from vit.features.classifiers import knn_accuracy_left_out
from vit.features.finite import check_finite
from vit.objectives.feature_evaluation import rank_of_features

LABELS = torch.arange(12) % 3


def test_numbers_are_taken():
    check_finite(torch.randn(3, 4))
    check_finite(torch.randn(2, 3, 4))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "use",
    [
        lambda bad, good: knn_accuracy(bad, LABELS, good, LABELS),
        lambda bad, good: knn_accuracy(good, LABELS, bad, LABELS),
        lambda bad, good: knn_accuracy_left_out(bad, LABELS),
        lambda bad, good: linear_accuracy(good, LABELS, bad, LABELS),
        lambda bad, good: rank_of_features(bad),
        lambda bad, good: pca(bad),
    ],
    ids=["known", "asked", "left out", "linear", "rank", "components"],
)
def test_others_are_refused_in_one_line(use, value):
    bad, good = torch.randn(2, 12, 4)
    bad[[3, 3, 7], [0, 1, 2]] = value
    with pytest.raises(ValueError, match=r"^2 of 12 features contain NaN or infinity: the model diverged"):
        use(bad, good)
