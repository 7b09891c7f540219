"""The scores of several labels an image, beside scikit-learn and by hand."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, precision_recall_fscore_support
from torch.testing import assert_close

from vit.objectives import MultilabelClassifier
from vit.objectives.multilabel.evaluation import MultilabelEvaluation, one_row_each

NAMES = ["ant", "bee", "cat", "dog", "eel"]
CPU = torch.device("cpu")


@pytest.fixture
def rows():
    """Logits of 103 images for 5 classes, of which no image shows the last one, and their labels."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(103, 5, generator=generator) < torch.tensor([0.5, 0.2, 0.05, 0.9, 0.0])).float()
    return torch.randn(103, 5, generator=generator) + labels, labels


def evaluated(logits, labels, thresholds=None, parts=(50, 53), of_views=None):
    evaluation = MultilabelEvaluation(torch.full((5,), 0.5) if thresholds is None else thresholds, CPU)
    views = [None] * len(parts) if of_views is None else of_views.split(parts)
    for *part, view in zip(logits.split(parts), labels.split(parts), views, strict=True):
        evaluation.update(*part, view)
    evaluation.gather()
    return evaluation


def test_all_scores_are_those_of_scikit_learn(rows):
    logits, labels = rows
    thresholds = torch.tensor([0.5, 0.6, 0.7, 0.4, 0.5])
    scores = evaluated(logits, labels, thresholds).scores(NAMES)
    probabilities, true = logits.sigmoid().double().numpy(), labels.numpy()
    said = (logits.sigmoid() >= thresholds).numpy()
    expected = [average_precision_score(true[:, i], probabilities[:, i]) for i in range(4)]
    assert scores["mean_average_precision"] == pytest.approx(np.mean(expected))
    precision, recall, f1, support = precision_recall_fscore_support(true, said, zero_division=0)
    found = [[row[name] for name in ("precision", "recall", "f1")] for row in scores["classes"][:4]]
    assert found == [pytest.approx(row) for row in list(zip(precision, recall, f1, strict=True))[:4]]
    assert [row["support"] for row in scores["classes"]] == support.tolist()
    assert scores["f1"] == pytest.approx(f1[:4].mean())
    assert scores["exact_match"] == pytest.approx((said == true).all(axis=1).mean())
    expected_loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels).item()
    assert scores["loss"] == pytest.approx(expected_loss)
    assert scores["count"] == 103


def test_a_class_without_images_has_no_scores_and_its_threshold_stays(rows):
    evaluation = evaluated(*rows, thresholds=torch.full((5,), 0.3))
    eel = evaluation.scores(NAMES)["classes"][4]
    assert [eel[name] for name in ("average_precision", "precision", "recall", "f1")] == [None] * 4
    assert evaluation.best_thresholds()[4] == pytest.approx(0.3)


def test_one_label_alone_has_the_scores_that_it_has_beside_others(rows):
    logits, labels = rows
    of_five = evaluated(logits, labels).scores(NAMES)["classes"][0]
    alone = evaluated(logits[:, :1], labels[:, :1], torch.full((1,), 0.5)).scores(NAMES[:1])
    assert alone["classes"] == [of_five]
    assert (alone["f1"], alone["roc_auc"]) == (of_five["f1"], of_five["roc_auc"])


def test_probabilities_that_are_no_numbers_have_no_scores_and_leave_the_threshold(rows):
    logits, labels = rows
    logits[7, 1] = torch.nan
    evaluation = evaluated(logits, labels, thresholds=torch.full((5,), 0.3))
    scores = evaluation.scores(NAMES)
    bee = scores["classes"][1]
    assert [bee[name] for name in ("average_precision", "roc_auc", "precision", "recall", "f1")] == [None] * 5
    assert (scores["loss"], scores["classes_with_images"]) == (None, 4)
    assert evaluation.best_thresholds()[1] == pytest.approx(0.3)


def test_the_threshold_of_a_class_has_its_highest_f1(rows):
    logits, labels = rows
    best = evaluated(logits, labels).best_thresholds()
    scores = evaluated(logits, labels, best).scores(NAMES)["classes"]
    for number in range(4):
        for other in logits[::7, number].sigmoid():
            changed = best.clone()
            changed[number] = other
            assert evaluated(logits, labels, changed).scores(NAMES)["classes"][number]["f1"] <= scores[number]["f1"]


def test_the_threshold_of_a_class_is_far_from_the_probabilities_on_both_sides():
    logits = torch.tensor([[0.9], [0.3003], [0.1]]).logit()
    evaluation = evaluated(logits, torch.tensor([[1.0], [1.0], [0.0]]), torch.full((1,), 0.5), parts=(3,))
    assert evaluation.best_thresholds().item() == pytest.approx((0.3003 + 0.1) / 2)


def test_rows_that_pad_a_batch_do_not_count(rows):
    logits, labels = rows
    padded = torch.cat([labels, torch.full((7, 5), -1.0)])
    found = evaluated(torch.cat([logits, torch.randn(7, 5)]), padded, parts=(50, 60))
    assert found.scores(NAMES) == evaluated(logits, labels).scores(NAMES)
    assert found.count == 103


def test_an_image_that_a_sampler_repeats_to_fill_a_batch_up_does_not_count(rows):
    logits, labels = rows
    found = MultilabelEvaluation(torch.full((5,), 0.5), CPU)
    found.update(logits, labels, index=torch.arange(103))
    found.update(logits[:1], labels[:1], index=torch.tensor([-1]))
    assert found.scores(NAMES) == evaluated(logits, labels, parts=(103,)).scores(NAMES)


def test_an_image_of_the_data_set_whose_labels_are_all_unknown_is_refused(rows):
    logits, labels = rows
    unknown = torch.cat([labels[:4], torch.full((1, 5), -1.0)])
    with pytest.raises(ValueError, match="leave out images whose labels are not known"):
        MultilabelEvaluation(torch.full((5,), 0.5), CPU).update(logits[:5], unknown, index=torch.arange(5))


def test_the_score_over_views_is_that_of_their_logits(rows):
    logits, labels = rows
    found = evaluated(torch.zeros_like(logits), labels, of_views=logits)
    assert found.mean_average_precision_views == evaluated(logits, labels).mean_average_precision


def test_no_images_have_no_scores():
    scores = evaluated(torch.zeros(0, 5), torch.zeros(0, 5), parts=(0,)).scores(NAMES)
    assert (scores["mean_average_precision"], scores["f1"], scores["count"]) == (None, None, 0)


def test_the_mistakes_are_the_labels_farthest_on_the_wrong_side_of_their_threshold():
    probabilities = torch.tensor([[0.9, 0.2, 0.5, 0.5, 0.1], [0.4, 0.6, 0.45, 0.5, 0.3]])
    labels = torch.tensor([[0.0, 1, 1, 1, 0], [1, 1, 1, 1, 0]])
    found = evaluated(probabilities.logit(), labels, parts=(1, 1)).mistakes
    assert [(mistake.index, mistake.number, mistake.is_there) for mistake in found] == [
        (0, 0, False),
        (0, 1, True),
        (1, 0, True),
        (1, 2, True),
    ]
    assert found[0].probability == pytest.approx(0.9)


def test_class_numbers_are_rows_with_one_label():
    assert_close(one_row_each(torch.tensor([1, 0]), 2), torch.tensor([[0.0, 1], [1, 0]]))


def test_every_column_is_a_score_or_a_number_of_the_test(rows):
    names = {column.name for column in MultilabelClassifier.columns}
    assert names - MultilabelClassifier.test_fields.keys() <= evaluated(*rows).scores(NAMES).keys()


def test_labels_other_than_0_and_1_are_refused(rows):
    logits, labels = rows
    for others in (0.95 * labels, 2 * labels - 1):
        with pytest.raises(ValueError, match=r"hold numbers besides 0 and 1, .*: turn -1 into 0, round shares,"):
            evaluated(logits, others)


def test_a_class_that_is_never_said_has_no_precision(rows):
    logits, labels = rows
    scores = evaluated(logits, labels, thresholds=torch.tensor([0.5, 1.1, 0.5, 0.5, 0.5])).scores(NAMES)
    assert scores["classes"][1]["precision"] is None
    assert scores["classes"][1]["recall"] == 0.0


def test_thresholds_keep_their_precision_in_a_model_of_half_precision():
    sizes = {"image_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2, "num_classes": 2}
    model = MultilabelClassifier(**sizes)
    model.thresholds.copy_(torch.tensor([0.9985, 0.5]))
    model.bfloat16()
    assert model.network.head.weight.dtype == torch.bfloat16
    assert model.thresholds.tolist() == pytest.approx([0.9985, 0.5], abs=1e-7)
