"""The rank, the spread and the neighbours of features, by hand."""

import math

import pytest
import torch

from vit.objectives import feature_evaluation
from vit.objectives.feature_evaluation import FeatureEvaluation, describe_collapse, feature_std, rank_of_features


def evaluated(features, labels, is_real=None, device="cpu"):
    evaluation = FeatureEvaluation(features.shape[1], torch.device(device))
    is_real = torch.ones(len(features), dtype=torch.bool) if is_real is None else is_real
    evaluation.update(features, torch.arange(float(is_real.sum())), labels, is_real)
    evaluation.gather()
    return evaluation


def test_the_effective_rank_is_that_of_the_definition():
    features = torch.randn(13, 5, generator=torch.manual_seed(0)) * torch.tensor([3.0, 1, 1, 0.2, 0.1]) + 7
    values = torch.linalg.svdvals((features - features.mean(dim=0)).double())
    shares = values / values.sum()
    assert rank_of_features(features) == pytest.approx(math.exp(-(shares * shares.log()).sum()))


def test_the_effective_rank_counts_directions_and_is_one_of_equal_features():
    orthogonal = torch.cat([torch.eye(7), -torch.eye(7)])
    assert rank_of_features(orthogonal) == pytest.approx(7)
    assert rank_of_features(100 + orthogonal[:, :1]) == pytest.approx(1)
    assert rank_of_features(torch.ones(9, 4)) == 1


def test_the_standard_deviation_is_that_of_directions_whatever_their_length():
    features = torch.randn(11, 3, generator=torch.manual_seed(0))
    directions = features / features.norm(dim=1, keepdim=True)
    expected = directions.var(dim=0, unbiased=False).sum().sqrt().item()
    assert feature_std(features) == pytest.approx(expected)
    assert feature_std(features * torch.rand(11, 1).add(1)) == pytest.approx(expected)


def test_features_of_zeros_have_no_spread_and_have_collapsed():
    evaluation = evaluated(torch.zeros(20, 3), torch.arange(20) % 2)
    assert (evaluation.feature_std, evaluation.effective_rank) == (0.0, 1.0)
    assert describe_collapse(evaluation.scores()) is not None


def test_images_that_pad_a_batch_are_not_evaluated():
    features = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9], [0.0, 1.0]])
    is_real = torch.tensor([True, True, True, True, False])
    evaluation = evaluated(features, torch.tensor([0, 0, 1, 1, -1]), is_real)
    assert (evaluation.count, evaluation.loss, len(evaluation.rows["features"])) == (4, 1.5, 4)
    assert evaluation.knn_accuracy == evaluated(features[:4], torch.tensor([0, 0, 1, 1])).knn_accuracy


@pytest.mark.parametrize(
    "labels", [torch.zeros(6).long(), torch.zeros(6, 2).long(), torch.eye(6)], ids=["none", "texts", "several labels"]
)
def test_images_without_classes_have_no_accuracy_of_neighbours(labels):
    evaluation = evaluated(torch.randn(6, 3, generator=torch.manual_seed(0)), labels)
    assert evaluation.scores()["knn_accuracy"] is None
    assert evaluation.scores()["effective_rank"] > 1


def test_neighbours_are_of_other_groups_whatever_order_the_images_come_in():
    # Each image lies beside that of its own group, and the nearest of another group is of the other class.
    features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.9, 0.2], [0.0, 1.0], [0.1, 1.0], [0.2, 0.9]])
    labels, groups = torch.tensor([0, 0, 1, 1, 1, 0]), torch.tensor([7, 7, 3, 9, 9, 5])
    for order in (torch.arange(6), torch.tensor([5, 2, 0, 4, 1, 3])):
        evaluation = FeatureEvaluation(2, torch.device("cpu"))
        evaluation.update(features[order], torch.zeros(6), labels[order], torch.ones(6).bool(), order)
        evaluation.gather()
        assert evaluation.knn_accuracy == pytest.approx(4 / 6)
        evaluation.gather(groups)
        assert evaluation.knn_accuracy == 0
    evaluation.gather(torch.zeros(6).long())
    assert evaluation.knn_accuracy is None


def test_of_many_images_the_same_random_ones_are_compared(monkeypatch):
    monkeypatch.setattr(feature_evaluation, "MOST", 5)
    features = torch.randn(12, 3, generator=torch.manual_seed(0))
    first, second = (evaluated(features, torch.arange(12) % 2).rows["index"] for _ in range(2))
    assert torch.equal(first, second)
    assert len(first.unique()) == 5
    assert first.max() > 5


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        ({"effective_rank": 1.01, "feature_std": 0.4}, "the features have collapsed"),
        ({"effective_rank": 9.0, "feature_std": 0.001}, "the features have collapsed"),
        ({"effective_rank": 9.0, "feature_std": 0.4}, None),
        ({"effective_rank": 1.01, "feature_std": 0.4, "count": 2}, None),
    ],
    ids=["one direction", "one point", "spread", "two images"],
)
def test_a_collapse_is_told_by_rank_or_spread_unless_there_are_few_images(scores, says):
    said = describe_collapse({"count": 100} | scores)
    assert said is None if says is None else said.startswith(says)


def test_an_evaluation_of_no_features_has_not_collapsed():
    assert describe_collapse({}) is None


def test_collapsed_features_have_rank_one_however_their_rounding_spreads():
    features = 1 + 1e-6 * torch.randn(50, 16, generator=torch.manual_seed(0))
    assert rank_of_features(features) > 10
    assert evaluated(features, torch.arange(50) % 2).effective_rank == 1.0
