import json
import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import balanced_accuracy_score, precision_recall_fscore_support, top_k_accuracy_score
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_calibration_error,
    multiclass_confusion_matrix,
    multiclass_f1_score,
    multiclass_precision,
    multiclass_recall,
)

from vit.objectives.classify.evaluation import BINS, MISTAKES, Evaluation
from vit.objectives.classify.tables import notes


@pytest.fixture
def evaluation() -> Evaluation:
    return Evaluation(3, torch.device("cpu"))


def test_a_case_by_hand_with_views_and_a_row_that_fills_the_batch_up(evaluation):
    logits = torch.tensor([[9.0, 0, 0], [0, 9, 0], [0, 9, 0], [0, 0, 9]])
    of_views = torch.tensor([[0.0, 9, 0], [0, 9, 0], [0, 9, 0], [0, 0, 9]])
    evaluation.update(logits, torch.tensor([0, 1, 2, -1]), of_views)
    assert evaluation.confusion.tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert (evaluation.count, evaluation.accuracy, evaluation.accuracy_views) == (3, 2 / 3, 1 / 3)
    assert len(evaluation.mistakes) == 1


def test_an_image_that_a_sampler_repeats_to_fill_a_batch_up_does_not_count(evaluation):
    logits, labels = torch.tensor([[9.0, 0, 0], [9, 0, 0]]), torch.tensor([0, 1])
    evaluation.update(logits, labels, logits, index=torch.tensor([0, 1]))
    evaluation.update(logits[:1], labels[:1], logits[:1], index=torch.tensor([-1]))
    assert (evaluation.count, evaluation.accuracy, evaluation.accuracy_views) == (2, 1 / 2, 1 / 2)
    assert evaluation.rows["index"].tolist() == [0, 1]


def test_batches_of_any_size_and_processes_add_up_to_the_loss_and_the_accuracies_of_all(evaluation):
    logits, of_views, labels = torch.randn(11, 3), torch.randn(11, 3), torch.randint(0, 3, (11,))
    other = Evaluation(3, torch.device("cpu"))
    for process, rows in ((evaluation, slice(0, 5)), (evaluation, slice(5, 6)), (other, slice(6, 11))):
        process.update(logits[rows], labels[rows], of_views[rows])
    for mine, theirs in zip(evaluation.sums(), other.sums(), strict=True):
        mine += theirs
    assert evaluation.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-6)
    assert evaluation.accuracy == (logits.argmax(1) == labels).sum().item() / 11
    assert evaluation.accuracy_views == (of_views.argmax(1) == labels).sum().item() / 11


def test_the_most_confident_mistakes_are_kept_over_batches_with_their_places_in_the_data(evaluation):
    for first in (0, 40):
        strength = torch.arange(first, first + 40) / 10
        logits = torch.stack([strength, torch.zeros(40), torch.zeros(40)], dim=1)
        evaluation.update(logits, torch.ones(40, dtype=torch.long), index=torch.arange(first, first + 40))
    assert len(evaluation.mistakes) == MISTAKES
    confidence, index, label, predicted = evaluation.mistakes[0]
    assert (index, label, predicted) == (79, 1, 0)
    assert confidence == pytest.approx(torch.tensor([7.9, 0, 0]).softmax(0)[0].item())
    assert [mistake.index for mistake in evaluation.mistakes] == list(range(79, 79 - MISTAKES, -1))


def test_no_image_at_all_is_no_error(evaluation):
    assert (evaluation.accuracy, evaluation.accuracy_views, evaluation.loss) == (0.0, 0.0, 0.0)


def scores_of(logits, labels) -> dict:
    """The scores of logits in two batches and on two processes."""
    whole, other = (Evaluation(logits.shape[1], torch.device("cpu")) for _ in range(2))
    for process, rows in ((whole, slice(0, 11)), (whole, slice(11, 13)), (other, slice(13, None))):
        process.update(logits[rows], labels[rows])
    for mine, theirs in zip(whole.sums(), other.sums(), strict=True):
        mine += theirs
    return whole.scores([f"class {number}" for number in range(logits.shape[1])])


@pytest.fixture(scope="module")
def predictions():
    """Logits (101, 7) that are right about half of the time, and labels (101,)."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 7, (101,), generator=generator)
    return 2 * F.one_hot(labels, 7) + 1.5 * torch.randn(101, 7, generator=generator), labels


def test_scores_are_those_of_scikit_learn_over_batches_and_processes(predictions):
    logits, labels = predictions
    scores, predicted = scores_of(logits, labels), logits.argmax(dim=1)
    oracle = precision_recall_fscore_support(labels, predicted)
    for column, expected in zip(("precision", "recall", "f1", "support"), oracle, strict=True):
        assert [row[column] for row in scores["classes"]] == pytest.approx(expected)
    assert [row["name"] for row in scores["classes"]] == [f"class {number}" for number in range(7)]
    assert scores["accuracy"] == (predicted == labels).sum().item() / 101
    assert scores["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert scores["top5_accuracy"] == pytest.approx(top_k_accuracy_score(labels, logits, k=5))
    assert scores["loss"] == pytest.approx(F.cross_entropy(logits, labels).item())


def test_scores_are_those_of_torchmetrics_to_1e_7(predictions):
    logits, labels = predictions
    scores, probabilities, some = scores_of(logits, labels), logits.softmax(dim=1).double(), {"num_classes": 7}
    expected = {
        "accuracy": multiclass_accuracy(logits, labels, average="micro", **some),
        "balanced_accuracy": multiclass_accuracy(logits, labels, average="macro", **some),
        "top5_accuracy": multiclass_accuracy(logits, labels, average="micro", top_k=5, **some),
        "calibration_error": multiclass_calibration_error(probabilities, labels, n_bins=BINS, **some),
    }
    assert {name: scores[name] for name in expected} == pytest.approx(
        {name: value.item() for name, value in expected.items()}, rel=0, abs=1e-7
    )
    of_classes = {"precision": multiclass_precision, "recall": multiclass_recall, "f1": multiclass_f1_score}
    for name, measure in of_classes.items():
        values = measure(logits, labels, average="none", **some).tolist()
        assert [row[name] for row in scores["classes"]] == pytest.approx(values, rel=0, abs=1e-7)
    assert sum(row["count"] for row in scores["reliability"]) == 101


def test_confusions_are_the_largest_of_torchmetrics_matrix(predictions):
    logits, labels = predictions
    evaluation = Evaluation(7, torch.device("cpu"))
    evaluation.update(logits, labels)
    matrix = multiclass_confusion_matrix(logits, labels, num_classes=7)
    assert evaluation.confusion.equal(matrix)
    largest = matrix.fill_diagonal_(0).flatten().sort(descending=True).values
    assert [images for *_, images in evaluation.confusions] == largest[: len(evaluation.confusions)].tolist()


def test_a_calibration_by_hand(evaluation):
    # Confidence 0.5 twice, of which one is right; confidence 0.9 once, wrong; confidence 1 once, right.
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.9, 0.06, 0.04], [0.0, 1.0, 0.0]])
    evaluation.update(probabilities.log(), torch.tensor([0, 0, 1, 1]))
    scores = evaluation.scores(["a", "b", "c"])
    assert scores["calibration_error"] == pytest.approx((0 + abs(0 - 0.9) + 0) / 4)
    filled = {place: row for place, row in enumerate(scores["reliability"]) if row["count"]}
    assert filled == {
        7: {"confidence": pytest.approx(0.5), "accuracy": 0.5, "count": 2},
        13: {"confidence": pytest.approx(0.9), "accuracy": 0.0, "count": 1},
        14: {"confidence": 1.0, "accuracy": 1.0, "count": 1},
    }
    assert scores["reliability"][0] == {"confidence": None, "accuracy": None, "count": 0}


def test_what_has_no_value_is_null(evaluation):
    labels, predicted = torch.tensor([0, 0, 1, -1]), torch.tensor([0, 2, 0, 1])
    evaluation.update(9.0 * F.one_hot(predicted, 3), labels)
    scores = json.loads(json.dumps(evaluation.scores(["cat", "dog", "never seen"]), allow_nan=False))
    measured = ("name", "precision", "recall", "f1", "roc_auc", "average_precision", "support")
    assert [tuple(row) for row in scores["classes"]] == [measured] * 3
    assert [tuple(row.values()) for row in scores["classes"]] == [
        ("cat", 0.5, 0.5, 0.5, 0.25, pytest.approx((1 / 2 + 2 / 3) / 2), 2),
        ("dog", None, 0.0, 0.0, 0.5, pytest.approx(1 / 3), 1),
        ("never seen", None, None, None, None, None, 0),
    ]
    assert scores["classes_with_images"] == 2
    assert scores["roc_auc"] == pytest.approx((0.25 + 0.5) / 2)
    assert scores["balanced_accuracy"] == 0.25
    assert scores["top5_accuracy"] is None


def test_of_equal_logits_the_first_classes_are_the_five_best_as_in_the_table_of_images():
    evaluation = Evaluation(10, torch.device("cpu"))
    evaluation.update(torch.zeros(4, 10), torch.tensor([0, 0, 4, 9]))
    assert evaluation.rows["classes"].tolist() == [[0, 1, 2, 3, 4]] * 4
    scores = evaluation.scores([str(number) for number in range(10)])
    assert (scores["accuracy"], scores["top5_accuracy"]) == (0.5, 0.75)


def test_logits_that_are_not_a_number_give_null_and_no_error(evaluation):
    evaluation.update(torch.full((2, 3), math.nan), torch.tensor([0, 1]))
    scores = evaluation.scores(["a", "b", "c"])
    assert (scores["loss"], scores["calibration_error"], scores["roc_auc"]) == (None, None, None)
    assert "the loss is not finite: for some images the model's answer is no number" in notes(scores)


def test_a_loss_that_is_infinite_is_null(evaluation):
    evaluation.update(torch.tensor([[0, -math.inf, 0]]), torch.tensor([1]))
    assert evaluation.loss == math.inf
    assert evaluation.scores(["a", "b", "c"])["loss"] is None


def test_no_image_at_all_has_no_scores(evaluation):
    scores = evaluation.scores(["a", "b", "c"])
    assert (scores["accuracy"], scores["balanced_accuracy"], scores["calibration_error"]) == (0.0, None, None)
