"""Scores of methods: the table, its intervals, and the comparison with random maps."""

import pytest
import torch
from torch.testing import assert_close

from vit import VisionTransformer
from vit.explain.evaluation.faithfulness import removal_curves
from vit.explain.evaluation.scoring import Scores, localise, score
from vit.explain.maps.methods import CONTROLS, signed_map
from vit.explain.maps.subject import Subject

METHODS_SCORED = ["rollout", "relevance", "token_drop"]


@pytest.fixture(scope="module")
def scores(model, images):
    return score(model, images.split(7), METHODS_SCORED)


def test_every_method_has_a_row_with_every_measure(scores):
    assert scores.column("method") == [*METHODS_SCORED, *CONTROLS]
    assert list(scores.rows[0]) == [
        "method",
        *("drop", "drop deletion", "drop insertion", "fill", "fill deletion", "fill insertion"),
        *("positive", "negative", "SaCo", "Gini", "against random", "ms", "MB"),
    ]
    assert all(len(numbers) == 12 for measures in scores.values.values() for numbers in measures.values())


def test_the_numbers_are_those_of_each_image_whatever_the_batches(scores, model, images):
    subject = Subject(model, images)
    curves = removal_curves(subject, signed_map("relevance", subject))
    assert_close(scores.values["relevance"]["drop"], curves.insertion - curves.deletion)
    row = scores.row(method="relevance")
    assert row["drop"].mean == pytest.approx((curves.insertion - curves.deletion).mean().item(), abs=1e-6)
    assert row["drop"].low < row["drop"].mean < row["drop"].high


def test_token_drop_marks_the_tokens_that_predictions_depend_on_best(scores):
    assert scores.recommended("drop") == "token_drop"
    assert scores.row(method="token_drop")["against random"] == "above"
    assert scores.row(method="random")["against random"] == "no difference"
    assert scores.difference("random", "random", "drop").mean == 0


def test_control_maps_are_always_added_but_never_recommended(model, images):
    controls = score(model, [(images, torch.zeros(12))], [])  # labels are ignored
    assert controls.column("method") == list(CONTROLS)
    assert controls.recommended("drop") is None
    assert "12 images" in str(controls)


def test_memory_is_that_of_the_map(scores):
    assert scores.row(method="uniform")["MB"] < scores.row(method="rollout")["MB"]
    assert scores.row(method="rollout")["MB"] < scores.row(method="relevance")["MB"]


def test_attention_that_needs_its_whole_grid_is_scored_by_painting_only(images):
    model = VisionTransformer((6, 10), 2, embed_dim=12, depth=1, num_heads=3, attention="window").eval()
    row = score(model, [images[:2]], []).row(method="uniform")
    assert "drop" not in row
    assert "fill" in row


def test_methods_that_do_not_fit_the_model_are_left_out_unless_they_are_named(images):
    linear = VisionTransformer((6, 10), 2, embed_dim=12, depth=1, num_heads=3, attention="linear").eval()
    assert score(linear, [images[:2]]).column("method") == [
        *("input_gradient", "integrated_gradients", "smoothgrad", "occlusion"),
        *CONTROLS,
    ]
    with pytest.raises(ValueError, match="never forms the matrix"):
        score(linear, [images[:2]], ["rollout"])


def test_one_image_is_no_proof(model, images):
    assert set(score(model, [images[:1]], []).column("against random")) == {"no difference"}


def test_no_images_are_an_error(model):
    with pytest.raises(ValueError, match="at least one batch"):
        score(model, [], ["rollout"])


def test_maps_are_compared_with_a_known_place(model, images):
    masks = torch.zeros(12, 3, 5, dtype=torch.bool)
    masks[:, 1, 2] = True
    found = localise(model, images, torch.arange(12) % 7, masks, ["relevance"])
    assert found.column("method") == ["relevance", *CONTROLS]
    assert found.row(method="center")["hits"].mean == 1
    assert found.row(method="uniform")["hits"].mean == pytest.approx(1 / 15)
    assert found.row(method="uniform")["energy"].mean == pytest.approx(1 / 15)
    maps = signed_map("relevance", Subject(model, images, torch.arange(12) % 7)).clamp(min=0)
    assert_close(found.values["relevance"]["energy"], maps[:, 1, 2] / maps.sum(dim=(1, 2)))


def test_a_lead_over_a_control_that_may_be_chance_is_no_recommendation():
    often_ahead = torch.tensor([0.3, -0.2]).repeat(6)
    values = {"rollout": {"drop": often_ahead}, "random": {"drop": torch.zeros(12)}}
    difference = Scores([], values=values).difference("rollout", "random", "drop")
    assert difference.low < 0 < difference.mean < difference.high
    assert Scores([], values=values).recommended("drop") is None
    values["rollout"]["drop"] = torch.linspace(0.1, 0.3, 12)
    assert Scores([], values=values).recommended("drop") == "rollout"
