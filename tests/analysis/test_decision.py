"""What the decision rests on, in sentences: for a circuit set by hand, and for models that do not allow it."""

import re

import pytest
import torch

import vit
from tests.analysis.circuits import HEAD, LAYER, bright_and_dark, circuit
from vit.analysis import decision
from vit.analysis.labelled import Labelled
from vit.analysis.trained_model import TrainedModel


def subject_of(model, images):
    with torch.no_grad():
        labels = model(images).argmax(dim=-1)
    untrained = vit.VisionTransformer(**model.config).eval()
    return TrainedModel(model, untrained, Labelled(images, labels), Labelled(images, labels))


@pytest.fixture
def of_circuit():
    model, (bright, dark) = circuit(), bright_and_dark(8)
    with torch.no_grad():
        model.head.bias[1] = 0.2  # dark images are of class 1
    images = torch.stack([bright, dark], dim=1).flatten(0, 1)
    # Of either half, the same numbers of both kinds.
    return subject_of(model, images[[0, 1, 3, 2, 4, 5, 7, 6, 8, 9, 11, 10, 12, 13, 15, 14]])


def test_the_head_of_the_circuit_carries_the_decision_and_the_class_token_takes_it_over_there(of_circuit, tmp_path):
    answer = decision.what_the_decision_rests_on(of_circuit, tmp_path)
    assert f"head {HEAD} of layer {LAYER} carries the most of this" in answer.found
    moved = re.search(r"own, ([\d.]+)\u00a0% \([^)]*\) of the decision moves before layer (\d)", answer.found)
    assert float(moved[1]) == pytest.approx(100, abs=0.1)
    assert int(moved[2]) == LAYER + 1
    assert f", and 0.0\u00a0% (0.0 to 0.0) before layer {LAYER}: there, most of it still stands" in answer.found
    assert {path.name for path in tmp_path.iterdir()} == set(answer.pictures) == {"cut.png", "residual.png"}


def test_the_head_is_chosen_on_one_half_and_its_fall_is_that_of_the_other(ours, images, tmp_path, monkeypatch):
    falls = [torch.zeros(6, 5), torch.zeros(6, 5), torch.zeros(6, 5)]
    falls[1][::2, 4] = 9
    falls[1][1::2, 4] = torch.tensor([1.0, 2.0, 3.0])
    falls[0][1::2, 0] = 7  # the largest of the other half
    monkeypatch.setattr(decision, "cut_heads", lambda *_, **__: falls)
    drawn = []
    monkeypatch.setattr(decision.charts, "draw_importance", lambda values, *_: drawn.extend(values))
    answer = decision.what_the_decision_rests_on(subject_of(ours, images[:6]), tmp_path)
    assert "head 4 of layer 1 carries the most" in answer.found
    assert "the difference falls without it by 2.00 (-0.48 to 4.48), which cannot be told from none" in answer.found
    assert ", and without head 0 of layer 0 by 7.00: the halves name different heads." in answer.found
    # The table and the figure have the same number.
    assert answer.columns["fall_without"][1][4] == drawn[1][4].item() == pytest.approx(2)


def test_without_a_class_token_nothing_is_said_of_one(images, tmp_path):
    torch.manual_seed(0)
    model = vit.VisionTransformer(
        (12, 20), 4, embed_dim=40, depth=2, num_heads=5, class_token=False, pool="mean"
    ).eval()
    with torch.no_grad():
        model.head.weight.normal_()
    answer = decision.what_the_decision_rests_on(subject_of(model, images), tmp_path)
    assert "class token" not in answer.found
    assert "rank correlation with real exchanges" in answer.control


def test_a_model_that_predicts_one_class_alone_is_refused(images, tmp_path):
    model = vit.VisionTransformer((12, 20), 4, embed_dim=40, depth=1, num_heads=5).eval()
    with torch.no_grad():
        model.head.bias[3] = 100
    with pytest.raises(ValueError, match=r"predicts the same class \(3\) for nearly all 7 images"):
        decision.what_the_decision_rests_on(subject_of(model, images), tmp_path)


def test_a_class_token_that_is_read_beside_the_patches_may_never_hold_the_decision():
    shares = torch.tensor([[0.0, 0.1, 0.3], [0.0, 0.1, 0.5]])
    said = (
        "40.0\u00a0% (-87.1 to 167.1) of the decision moves after the last layer: most of it stands in other tokens to"
    )
    assert said in decision._way(shares)


def test_the_interval_of_what_the_class_token_moves_is_that_of_a_ratio_of_means():
    generator = torch.Generator().manual_seed(0)
    whole = 1 + torch.rand(4000, 1, generator=generator)
    moved = 0.3 * whole + 0.1 * torch.randn(4000, 2, generator=generator)
    shares = decision._shares(moved, whole[:, 0])
    torch.testing.assert_close(shares.mean(dim=0), moved.mean(dim=0) / whole.mean())
    drawn = torch.randint(4000, (400, 4000), generator=generator)
    resampled = moved[drawn].mean(dim=1) / whole[drawn].mean(dim=1)
    torch.testing.assert_close(shares.std(dim=0) / 4000**0.5, resampled.std(dim=0), rtol=0.1, atol=0)
