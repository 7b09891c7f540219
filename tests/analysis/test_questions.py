import re

import pytest
import torch

from vit.analysis import questions
from vit.analysis.answers_page import head_rows
from vit.analysis.questions import QUESTIONS, Answer
from vit.analysis.trained_model import TrainedModel
from vit.analysis.truncation import RankPoint


def test_chance_is_the_share_of_the_most_frequent_class(subject):
    assert subject.chance == 3 / 7


def test_heads_are_ranked_by_training_images_and_measured_on_others(subject, labels):
    assert torch.equal(subject.ranking[1], labels)
    assert torch.equal(torch.cat([batch for _, batch in subject.batches]), subject.held_out.labels)


def test_the_rank_is_chosen_on_one_half_of_the_images_and_its_cost_is_that_of_the_other(subject, tmp_path, monkeypatch):
    asked = []
    # Of 10 images, the even ones choose: rank 4 is as good as 16 there, and wrong on two more of the odd ones.
    chosen = {1: 1, 2: 3, 4: 5, 8: 5, 16: 5}
    reported = {1: 1, 2: 2, 4: 3, 8: 4, 16: 5}

    def curve(model, images, labels, ranks):
        asked.extend(ranks)
        rows = {rank: tuple(i // 2 < (chosen, reported)[i % 2][rank] for i in range(10)) for rank in ranks}
        return [RankPoint(rank, sum(row) / 10, sum(row) / 20, row) for rank, row in rows.items()]

    monkeypatch.setattr(questions, "truncation_curve", curve)
    monkeypatch.setattr(questions, "accuracy", lambda *_: 0.3)
    answer = questions.is_attention_low_rank(subject, tmp_path)
    assert asked == [1, 2, 4, 8, 16]
    assert "cut to rank 4 of 16, the model is right on 80.0\u00a0% of 7 images, and on 100.0\u00a0%" in answer.found
    assert "on the other half, it costs 40.0 points (-" in answer.found
    assert (
        "random subspace of the same 4 dimensions leaves 40.0\u00a0%; uniform attention, which has rank 1, 30.0"
        in answer.control
    )


@pytest.mark.parametrize("swapped", [False, True])
def test_low_rank_is_compared_with_the_untrained_model(subject, tmp_path, monkeypatch, swapped):
    """Sharpened attention is of higher rank than that of an untrained model, which is nearly uniform."""
    curve = [RankPoint(rank, 0.5, 0.1, (True, False) * 5) for rank in (1, 2, 4, 8, 16)]
    monkeypatch.setattr(questions, "truncation_curve", lambda *_: curve)
    monkeypatch.setattr(questions, "accuracy", lambda *_: 0.3)
    if swapped:
        subject = TrainedModel(subject.untrained, subject.model, subject.trained_on, subject.held_out)
    answer = questions.is_attention_low_rank(subject, tmp_path)
    assert f"Training has {'lowered' if swapped else 'raised'} the effective rank of attention: it is" in answer.found
    held, before = map(float, re.findall(r"([\d.]+)\u00a0% (?:of their sum|before training)", answer.control))
    assert (held > before) == swapped


def test_rare_patches_count_where_attention_is_above_the_control_and_the_head_is_reported_on_other_images(
    subject, tmp_path, monkeypatch
):
    """Head (0, 1) is furthest above its control on the even images, and less so on the odd ones."""
    noise = 0.01 * torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    first = torch.tensor([0.5, 0.8]).repeat(20, 1) + noise
    first[1::2, 1] = 0.3 + noise[1::2, 1]
    own, others = (
        [first, torch.full((20, 1), -0.2)],
        [torch.tensor([0.45, 0.0]).repeat(20, 1), torch.full((20, 1), -0.4)],
    )
    monkeypatch.setattr(questions, "rare_correlations", lambda *_: (own, others))
    answer = questions.do_heads_look_at_rare_patches(subject, tmp_path)
    assert answer.found.startswith("2 of 3 heads")
    assert "Head 1 of layer 0 is furthest above it on one half of the images" in answer.found
    assert re.search(
        r"it is above it by 0\.30 \(0\.(29|30) to 0\.3[01]\), and its correlation is \+0\.30", answer.found
    )
    assert "these two are +0.00 and +0.02" in answer.control
    assert answer.columns["rare_patches"][1] == pytest.approx([-0.2])
    assert answer.columns["rare_patches"][0][1] == pytest.approx(0.3, abs=0.01)  # the half that is reported


def test_layers_are_numbered_from_0_in_every_sentence_and_column(subject, tmp_path, monkeypatch):
    monkeypatch.setattr("vit.analysis.head_removal.ROUNDS", 1)
    answers = [answer(subject, tmp_path) for answer in QUESTIONS.values()]
    assert all(isinstance(answer, Answer) for answer in answers)
    text = " ".join(f"{answer.found} {answer.control}" for answer in answers)
    named = {int(x) for x in re.findall(r"[Ll]ayers? (\d)", text)}
    assert named <= {0, 1, 2}
    assert named
    assert {row["layer"] for row in head_rows(answers)} == {0, 1, 2}
    assert {row["head"] for row in head_rows(answers)} == {0, 1, 2, 3, 4}
