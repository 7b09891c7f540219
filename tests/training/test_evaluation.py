import pytest
import torch
import torch.nn.functional as F

from vit.training.evaluation import MISTAKES, Evaluation


@pytest.fixture
def evaluation() -> Evaluation:
    return Evaluation(3, torch.device("cpu"))


def test_a_case_by_hand_with_views_and_a_row_that_fills_the_batch_up(evaluation):
    logits = torch.tensor([[9.0, 0, 0], [0, 9, 0], [0, 9, 0], [0, 0, 9]])
    of_views = torch.tensor([[0.0, 9, 0], [0, 9, 0], [0, 9, 0], [0, 0, 9]])
    evaluation.update(logits, torch.tensor([0, 1, 2, -1]), torch.zeros(4, 1, 2, 2), of_views)
    assert evaluation.confusion.tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert (evaluation.count, evaluation.accuracy, evaluation.accuracy_views) == (3, 2 / 3, 1 / 3)
    assert len(evaluation.mistakes) == 1


def test_batches_of_any_size_and_processes_add_up_to_the_loss_and_the_accuracies_of_all(evaluation):
    logits, of_views, labels = torch.randn(11, 3), torch.randn(11, 3), torch.randint(0, 3, (11,))
    other = Evaluation(3, torch.device("cpu"))
    for process, rows in ((evaluation, slice(0, 5)), (evaluation, slice(5, 6)), (other, slice(6, 11))):
        process.update(logits[rows], labels[rows], torch.zeros(11, 1, 2, 2)[rows], of_views[rows])
    for mine, theirs in zip(evaluation.sums(), other.sums(), strict=True):
        mine += theirs
    assert evaluation.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-6)
    assert evaluation.accuracy == (logits.argmax(1) == labels).sum().item() / 11
    assert evaluation.accuracy_views == (of_views.argmax(1) == labels).sum().item() / 11


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
