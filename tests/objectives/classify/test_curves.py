"""Areas, curves and the threshold of two classes, beside scikit-learn and by hand."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, precision_score, recall_score, roc_auc_score, roc_curve

from vit.objectives.classify.curves import areas, curves, threshold_scores, youden_threshold
from vit.objectives.classify.evaluation import Evaluation


@pytest.fixture(scope="module")
def two_classes():
    """Probabilities (211,) of the positive class, some of them equal, and which images are positive."""
    generator = torch.Generator().manual_seed(0)
    is_positive = torch.rand(211, generator=generator) < 0.3
    noise = torch.randn(211, generator=generator)
    return (is_positive + noise).sigmoid().mul(50).round().div(50), is_positive


def test_areas_are_those_of_scikit_learn(two_classes):
    probabilities, is_positive = two_classes
    oracle = (roc_auc_score(is_positive, probabilities), average_precision_score(is_positive, probabilities))
    assert areas(*two_classes) == pytest.approx(oracle, abs=1e-6)


def test_the_roc_curve_is_that_of_scikit_learn(two_classes):
    probabilities, is_positive = two_classes
    false_positives, true_positives, _ = roc_curve(is_positive, probabilities, drop_intermediate=False)
    found = curves(probabilities, is_positive)
    np.testing.assert_allclose(found.false_positive_rate, false_positives, atol=1e-6)
    np.testing.assert_allclose(found.true_positive_rate, true_positives, atol=1e-6)


def test_the_threshold_has_the_largest_j_and_its_scores_are_those_of_scikit_learn(two_classes):
    probabilities, is_positive = two_classes
    threshold = youden_threshold(*two_classes)
    found, said = threshold_scores(*two_classes, threshold), probabilities >= threshold
    assert found["sensitivity"] == pytest.approx(recall_score(is_positive, said))
    assert found["specificity"] == pytest.approx(recall_score(~is_positive, ~said))
    assert found["precision"] == pytest.approx(precision_score(is_positive, said))
    false_positives, true_positives, _ = roc_curve(is_positive, probabilities)
    largest = (true_positives - false_positives).max()
    assert found["sensitivity"] + found["specificity"] - 1 == pytest.approx(largest)


def test_the_threshold_is_in_the_middle_between_the_probabilities_that_it_separates():
    is_positive = torch.tensor([False, False, True, True])
    assert youden_threshold(torch.tensor([0.125, 0.25, 0.5, 0.75]), is_positive) == 0.375
    assert youden_threshold(torch.tensor([0.5, 0.5, 0.5, 0.5]), is_positive) == 0.5


@pytest.mark.parametrize("steps", range(4))
def test_the_threshold_separates_neighbouring_numbers(steps):
    probabilities = torch.ones(2)  # as of a model that is sure
    for _ in range(steps):
        probabilities = probabilities.nextafter(torch.zeros(2))
    probabilities[0] = probabilities[0].nextafter(torch.tensor(0.0))
    threshold = youden_threshold(probabilities, torch.tensor([False, True]))
    assert (probabilities >= threshold).tolist() == [False, True]


@pytest.mark.parametrize("is_positive", [torch.zeros(3).bool(), torch.ones(3).bool(), torch.zeros(0).bool()])
def test_images_of_one_class_alone_have_no_area_and_no_threshold(is_positive):
    probabilities = torch.rand(len(is_positive))
    assert areas(probabilities, is_positive) == (None, None)
    assert youden_threshold(probabilities, is_positive) is None


def test_a_share_of_no_images_is_none():
    assert threshold_scores(torch.tensor([0.1]), torch.tensor([False]), 0.5) == {
        "sensitivity": None,
        "specificity": 1.0,
        "precision": None,
    }


def test_the_areas_of_several_classes_and_their_mean_are_those_of_scikit_learn():
    generator = torch.Generator().manual_seed(1)
    labels, logits = torch.arange(97) % 3, torch.randn(97, 4, generator=generator)
    evaluation = Evaluation(4, torch.device("cpu"))
    for rows in (slice(0, 50), slice(50, None)):
        evaluation.update(logits[rows], labels[rows])
    scores, probabilities = evaluation.scores(["a", "b", "c", "absent"]), logits.softmax(dim=1)
    expected = [roc_auc_score(labels == number, probabilities[:, number]) for number in range(3)]
    assert [row["roc_auc"] for row in scores["classes"]] == [*map(pytest.approx, expected), None]
    assert scores["roc_auc"] == pytest.approx(np.mean(expected))
    expected = [average_precision_score(labels == number, probabilities[:, number]) for number in range(3)]
    assert scores["average_precision"] == pytest.approx(np.mean(expected))


def test_two_classes_have_the_scores_of_the_threshold_that_is_given():
    evaluation = Evaluation(2, torch.device("cpu"))
    evaluation.update(torch.tensor([[0.0, 1], [0, -1], [0, 2]]), torch.tensor([1, 1, 0]))
    assert evaluation.scores(["cat", "dog"])["threshold"] is None
    found = evaluation.scores(["cat", "dog"], 0.2)["threshold"]
    assert found == {"class": "dog", "value": 0.2, "sensitivity": 1.0, "specificity": 0.0, "precision": 2 / 3}
