import pytest
import torch

import vit
from vit.analysis import PruningPoint, questions
from vit.analysis.labelled import Labelled
from vit.analysis.trained_model import TrainedModel
from vit.analysis.truncation import RankPoint


@pytest.fixture
def subject(ours, images, labels):
    untrained = vit.VisionTransformer((12, 20), 4, embed_dim=40, depth=3, num_heads=5).eval()
    return TrainedModel(
        ours, untrained, Labelled(images, labels), Labelled(images, torch.tensor([3, 3, 3, 1, 2, 4, 5]))
    )


def test_chance_is_the_share_of_the_most_frequent_class(subject):
    assert subject.chance == 3 / 7


def test_heads_are_ranked_by_training_images_and_measured_on_others(subject, labels):
    assert torch.equal(subject.ranking[1], labels)
    assert torch.equal(torch.cat([batch for _, batch in subject.batches]), subject.held_out.labels)


def test_attention_is_as_low_rank_as_the_smallest_rank_within_a_point(subject, tmp_path, monkeypatch):
    asked = []

    def curve(model, images, labels, ranks):
        asked.extend(ranks)
        accuracies = dict(zip(ranks, (0.2, 0.5, 0.893, 0.91, 0.9), strict=True))
        return [RankPoint(rank, value, value / 2) for rank, value in accuracies.items()]

    monkeypatch.setattr(questions, "truncation_curve", curve)
    monkeypatch.setattr(questions, "accuracy", lambda *_: 0.3)
    answer = questions.is_attention_low_rank(subject, tmp_path)
    assert asked == [1, 2, 4, 8, 16]
    assert "cut to rank 4 of 16, the model is right on 89.3\u00a0% of 7 images, and on 90.0\u00a0%" in answer.found
    assert (
        "random subspace of the same 4 dimensions leaves 44.6\u00a0%; uniform attention, which has rank 1, 30.0"
        in answer.control
    )


def test_the_layer_that_falls_most_needs_its_heads_and_random_heads_are_the_control(subject, tmp_path, monkeypatch):
    fallen = {0: 0.6, 1: 0.2, 2: 0.8}

    def curve(model, batches, ranking, *, step, rerank, layers):
        (layer,) = layers
        assert (step, rerank) == (1, False)
        ends = ((15, {}, 0.9), (10, {layer: [0, 1, 2, 3, 4]}, fallen[layer]))
        return [PruningPoint(left, removed, value, 1.0, 1, 1.0, 1.0) for left, removed, value in ends]

    pruned = []
    monkeypatch.setattr(questions, "pruning_curve", curve)
    monkeypatch.setattr(questions, "prune_heads", lambda model, heads: pruned.append(heads))
    monkeypatch.setattr(questions, "accuracy", lambda *_: 0.5)
    answer = questions.which_layers_need_their_heads(subject, tmp_path)
    assert (
        "Layer 1 needs its attention most: without its 5 heads, accuracy falls from 90.0\u00a0% to 20.0" in answer.found
    )
    assert "Layer 2 needs it least: 80.0" in answer.found
    assert "Without 5 random heads of all layers, 50.0\u00a0% are left" in answer.control
    assert [sum(len(set(heads)) for heads in each.values()) for each in pruned] == [5, 5, 5]
    assert len({str(sorted(each.items())) for each in pruned}) == 3


def test_rare_patches_count_where_attention_is_above_the_control(subject, tmp_path, monkeypatch):
    own = [torch.tensor([0.5, 0.3]), torch.tensor([-0.2])]
    others = [torch.tensor([0.45, 0.0]), torch.tensor([-0.4])]
    monkeypatch.setattr(questions, "rare_attention", lambda *_: (own, others))
    answer = questions.do_heads_look_at_rare_patches(subject, tmp_path)
    assert answer.found.startswith("2 of 3 heads")
    assert "Head 1 of layer 0 is furthest above it, with +0.30; the mean over heads is +0.20" in answer.found
    assert "these two are +0.00 and +0.02" in answer.control
    assert answer.columns["rare_patches"] == [pytest.approx([0.5, 0.3]), pytest.approx([-0.2])]
