"""Scores of texts, against greedy decoding and by hand."""

import pytest
import torch
import torch.nn.functional as F

from vit.data.alphabet import Alphabet
from vit.objectives.read.evaluation import MISREAD, TextEvaluation, next_tokens

ALPHABET = Alphabet("abc")
TEXTS = ["a", "ba", "", "cab", "bb"]
TOKENS = ALPHABET.encode(TEXTS, 3)
IMAGES = torch.arange(5, dtype=torch.uint8)[:, None, None, None].expand(5, 1, 2, 3)


def logits_of(written):
    """Logits whose most probable tokens write these texts."""
    return 3.0 * F.one_hot(ALPHABET.encode(written, 3)[:, 1:], ALPHABET.size).float()


@pytest.fixture
def evaluation():
    return TextEvaluation(3, torch.device("cpu"))


def update(evaluation, written, rows=slice(None)):
    targets = next_tokens(TOKENS, ALPHABET.end)[rows]
    evaluation.update(logits_of(written)[rows], targets, IMAGES[rows])


def test_a_text_is_read_if_every_letter_and_its_end_are_right(evaluation):
    update(evaluation, ["a", "bc", "", "ca", "bb"])
    assert (evaluation.count, evaluation.accuracy) == (5, 0.6)
    scores = evaluation.scores()
    assert scores["lengths"] == [
        {"length": 0, "accuracy": 1.0, "support": 1},
        {"length": 1, "accuracy": 1.0, "support": 1},
        {"length": 2, "accuracy": 0.5, "support": 2},
        {"length": 3, "accuracy": 0.0, "support": 1},
    ]
    assert scores["token_accuracy"] == 11 / 13  # 8 letters and 5 ends; wrong are the "a" of "ba" and the "b" of "cab"
    assert [image[0, 0, 0].item() for image, _ in evaluation.misread] == [1, 3]


def test_what_follows_the_end_does_not_count(evaluation):
    logits = logits_of(TEXTS)
    logits[0, 2:] = torch.randn(2, ALPHABET.size)
    evaluation.update(logits, next_tokens(TOKENS, ALPHABET.end), IMAGES)
    assert evaluation.accuracy == 1


def test_the_loss_is_the_mean_over_letters_and_ends(evaluation):
    update(evaluation, TEXTS)
    expected = -F.log_softmax(torch.tensor([3.0, 0, 0, 0, 0]), dim=0)[0].item()
    assert evaluation.loss == pytest.approx(expected)


def test_batches_sum_up(evaluation):
    written = ["a", "bc", "", "ca", "bb"]
    whole = TextEvaluation(3, torch.device("cpu"))
    update(whole, written)
    update(evaluation, written, slice(0, 2))
    update(evaluation, written, slice(2, 5))
    for one, other in zip(whole.sums(), evaluation.sums(), strict=True):
        torch.testing.assert_close(one, other)


def test_few_misread_pictures_are_kept(evaluation):
    for _ in range(10):
        update(evaluation, ["c", "c", "c", "c", "c"])
    assert len(evaluation.misread) == MISREAD


def test_an_evaluation_without_texts_has_scores(evaluation):
    assert (evaluation.accuracy, evaluation.loss, evaluation.scores()["lengths"]) == (0, 0, [])
