import pytest
import torch
import torch.nn.functional as F

from vit.training.evaluation import MISTAKES, Evaluation


@pytest.fixture
def evaluation() -> Evaluation:
    return Evaluation(3, torch.device("cpu"))


def test_a_case_by_hand(evaluation):
    logits = torch.tensor([[9.0, 0, 0], [0, 9, 0], [0, 9, 0], [0, 0, 9]])
    evaluation.update(logits, torch.tensor([0, 1, 2, 2]), torch.zeros(4, 1, 2, 2))
    assert evaluation.confusion.tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    assert evaluation.accuracy == 0.75
    assert evaluation.count == 4


def test_batches_of_any_size_add_up_to_the_loss_and_accuracy_of_all(evaluation):
    logits, labels = torch.randn(11, 3), torch.randint(0, 3, (11,))
    for rows in (slice(0, 5), slice(5, 6), slice(6, 11)):
        evaluation.update(logits[rows], labels[rows], torch.zeros(11, 1, 2, 2)[rows])
    assert evaluation.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-6)
    assert evaluation.accuracy == (logits.argmax(1) == labels).sum().item() / 11


def test_rows_that_fill_a_batch_up_do_not_count(evaluation):
    logits = torch.tensor([[9.0, 0, 0], [0, 9, 0], [0, 9, 0]])
    evaluation.update(logits, torch.tensor([0, -1, -1]), torch.zeros(3, 1, 2, 2))
    assert (evaluation.count, evaluation.accuracy) == (1, 1.0)
    assert evaluation.mistakes == []


def test_mean_logits_over_views_give_an_accuracy_of_their_own_and_change_nothing_else(evaluation):
    logits = torch.tensor([[9.0, 0, 0], [0, 9, 0], [0, 9, 0], [0, 0, 9]])
    labels = torch.tensor([0, 1, 2, -1])
    of_views = torch.tensor([[0.0, 9, 0], [0, 9, 0], [0, 9, 0], [0, 0, 9]])
    evaluation.update(logits, labels, torch.zeros(4, 1, 2, 2), of_views)
    plain = Evaluation(3, torch.device("cpu"))
    plain.update(logits, labels, torch.zeros(4, 1, 2, 2))
    assert (evaluation.accuracy, evaluation.accuracy_views) == (2 / 3, 1 / 3)
    assert torch.equal(evaluation.confusion, plain.confusion)
    assert evaluation.loss == plain.loss
    assert len(evaluation.mistakes) == len(plain.mistakes) == 1


def test_what_processes_add_up_gives_the_accuracies_and_the_loss_of_all_images(evaluation):
    logits, of_views, labels = torch.randn(11, 3), torch.randn(11, 3), torch.randint(0, 3, (11,))
    processes = [Evaluation(3, torch.device("cpu")) for _ in range(2)]
    for process, rows in zip(processes, (slice(0, 5), slice(5, 11)), strict=True):
        process.update(logits[rows], labels[rows], torch.zeros(11, 1, 2, 2)[rows], of_views[rows])
    evaluation.update(logits, labels, torch.zeros(11, 1, 2, 2), of_views)
    one, other = processes
    for mine, theirs in zip(one.sums(), other.sums(), strict=True):
        mine += theirs
    assert (one.accuracy, one.accuracy_views) == (evaluation.accuracy, evaluation.accuracy_views)
    assert one.loss == pytest.approx(evaluation.loss)


def test_the_most_confident_mistakes_are_kept_over_batches_with_their_images(evaluation):
    for first in (0, 40):
        strength = torch.arange(first, first + 40) / 10
        logits = torch.stack([strength, torch.zeros(40), torch.zeros(40)], dim=1)
        images = torch.arange(first, first + 40).reshape(40, 1, 1, 1).expand(40, 1, 2, 2)
        evaluation.update(logits, torch.ones(40, dtype=torch.long), images)
    assert len(evaluation.mistakes) == MISTAKES
    confidence, image, label, predicted = evaluation.mistakes[0]
    assert (int(image[0, 0, 0]), label, predicted) == (79, 1, 0)
    assert confidence == pytest.approx(torch.tensor([7.9, 0, 0]).softmax(0)[0].item())
    assert [int(mistake[1][0, 0, 0]) for mistake in evaluation.mistakes] == list(range(79, 79 - MISTAKES, -1))


def test_no_image_at_all_is_no_error(evaluation):
    assert (evaluation.accuracy, evaluation.accuracy_views, evaluation.loss) == (0.0, 0.0, 0.0)
