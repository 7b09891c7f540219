"""Scores of methods: the table, its intervals, and the comparison with random maps."""

import itertools

import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from vit import VisionTransformer
from vit.explain.evaluation import scoring
from vit.explain.evaluation.faithfulness import removal_curves
from vit.explain.evaluation.scoring import Scores, localise, score
from vit.explain.evaluation.shuffled import mean_of_others, untrained_maps
from vit.explain.maps.methods import CONTROLS, signed_map
from vit.explain.maps.subject import Subject

METHODS_SCORED = ["rollout", "relevance", "token_drop"]


@pytest.fixture(scope="module")
def scores(model, images):
    return score(model, images.split(16), METHODS_SCORED)


def test_every_method_has_a_row_with_every_measure(scores):
    assert scores.column("method") == [*METHODS_SCORED, *CONTROLS]
    assert list(scores.rows[0]) == [
        "method",
        *("drop", "drop most first", "drop least first", "fill", "fill most first", "fill least first"),
        *("positive", "negative", "SaCo", "Gini"),
        *("mean map", "untrained", "against controls", "ms", "MB"),
    ]
    assert all(len(numbers) == 31 for measures in scores.values.values() for numbers in measures.values())


def test_the_numbers_are_those_of_each_image_whatever_the_batches(scores, model, images):
    subject = Subject(model, images)
    curves = removal_curves(subject, signed_map("relevance", subject))
    assert_close(scores.values["relevance"]["drop"], curves.area_between)
    row = scores.row(method="relevance")
    assert row["drop"].mean == pytest.approx((curves.area_between).mean().item(), abs=1e-6)
    assert row["drop"].low < row["drop"].mean < row["drop"].high


def test_token_drop_marks_the_tokens_that_predictions_depend_on_best(scores):
    assert scores.recommended("drop") == ["token_drop"]
    assert scores.row(method="token_drop")["against controls"] == "above"
    assert "against controls" not in scores.row(method="random")
    assert scores.difference("random", "random", "drop").mean == 0


def test_control_maps_are_always_added_but_never_recommended(model, images):
    controls = score(model, [(images, torch.zeros(31))], [])  # labels are ignored
    assert controls.column("method") == list(CONTROLS)
    assert controls.recommended("drop") == []
    assert "31 images" in str(controls)


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
    scored = score(linear, [images[:2]]).column("method")
    assert {"input_gradient", "integrated_gradients", "smoothgrad", "occlusion", *CONTROLS} <= set(scored)
    assert not {"attention", "rollout", "relevance", "token_drop"} & set(scored)
    with pytest.raises(ValueError, match="never forms the matrix"):
        score(linear, [images[:2]], ["rollout"])


def test_one_image_is_no_proof(model, images):
    assert score(model, [images[:1]], ["rollout"]).row(method="rollout")["against controls"] == "cannot tell"


def test_no_images_are_an_error(model):
    with pytest.raises(ValueError, match="at least one batch"):
        score(model, [], ["rollout"])


def test_batches_of_which_only_some_can_lose_tokens_are_refused(model, images, monkeypatch):
    answers = iter([True, False])
    monkeypatch.setattr(scoring, "can_drop", lambda subject: next(answers))
    with pytest.raises(
        ValueError, match="first batch are removed by token_drop, and those of a later one by mean_fill"
    ):
        score(model, images[:4].split(2), ["rollout"])


def test_maps_are_compared_with_a_known_place(model, images):
    masks = torch.zeros(31, 3, 5, dtype=torch.bool)
    masks[:, 1, 2] = True
    found = localise(model, images, torch.arange(31) % 7, masks, ["relevance"])
    assert found.column("method") == ["relevance", *CONTROLS]
    assert found.row(method="center")["hits"].mean == 1
    assert found.row(method="uniform")["hits"].mean == pytest.approx(1 / 15)
    assert found.row(method="uniform")["energy"].mean == pytest.approx(1 / 15)
    maps = signed_map("relevance", Subject(model, images, torch.arange(31) % 7)).clamp(min=0)
    assert_close(found.values["relevance"]["energy"], maps[:, 1, 2] / maps.sum(dim=(1, 2)))


def test_a_lead_over_a_control_that_may_be_chance_is_no_recommendation():
    often_ahead = torch.tensor([0.3, -0.2]).repeat(6)
    values = {"rollout": {"drop": often_ahead}, "random": {"drop": torch.zeros(12)}}
    difference = Scores([], values=values).difference("rollout", "random", "drop")
    assert difference.low < 0 < difference.mean < difference.high
    assert Scores([], values=values).recommended("drop") == []
    values["rollout"]["drop"] = torch.linspace(0.1, 0.3, 12)
    assert Scores([], values=values).recommended("drop") == ["rollout"]


def scores_of(**of_methods):
    return Scores([], values={name: {"drop": torch.tensor(values)} for name, values in of_methods.items()})


def test_all_methods_that_are_not_clearly_below_the_best_are_recommended():
    best, level, below = [0.5, 0.3] * 6, [0.3, 0.49] * 6, [0.3, 0.1] * 6
    scores = scores_of(rollout=level, legrad=below, relevance=best, random=[0.0, 0.02] * 6)
    assert scores.recommended("drop") == ["relevance", "rollout"]


def test_a_method_that_may_be_no_better_than_a_control_is_not_recommended_beside_the_best():
    uncertain = [2.0, -1.5] * 6
    scores = scores_of(relevance=[0.5, 0.3] * 6, rollout=uncertain, random=[0.0, 0.02] * 6)
    assert scores.difference("relevance", "rollout", "drop").low < 0
    assert scores.recommended("drop") == ["relevance"]


def test_a_few_images_recommend_nothing():
    scores = scores_of(relevance=[0.5, 0.4] * 4, random=[0.0] * 8)
    assert scores.difference("relevance", "random", "drop").low > 0
    assert scores.recommended("drop") == []


def test_of_200_tables_of_methods_that_are_all_random_few_recommend_one():
    drawn = torch.randn(200, 12, 12, generator=torch.Generator().manual_seed(0))
    names = ["rollout", "relevance", "legrad", "gradcam", "occlusion", "attention", *CONTROLS]
    tables = [Scores([], values={m: {"drop": x} for m, x in zip(names, table, strict=True)}) for table in drawn]
    assert sum(bool(table.recommended("drop")) for table in tables) <= 0.05 * 200


def test_of_200_tables_few_leave_out_a_method_that_is_as_good_as_the_best():
    drawn = torch.randn(200, 6, 12, generator=torch.Generator().manual_seed(0))
    names = ["rollout", "relevance", "legrad", "gradcam", "occlusion", "attention"]
    above = {"random": {"drop": torch.full((12,), -100.0)}}
    tables = [Scores([], values=above | {m: {"drop": x} for m, x in zip(names, t, strict=True)}) for t in drawn]
    assert sum(set(table.recommended("drop")) != set(names) for table in tables) <= 0.05 * 200


def test_the_time_of_a_map_is_that_of_an_image(model, images, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr("vit.explain.evaluation.scoring.time.perf_counter", lambda: next(clock))
    assert set(score(model, images[:8].split(4), ["rollout"]).column("ms")) == {2 * 1000 / 8}  # a second for a batch


def test_the_controls_of_a_method_are_its_mean_map_and_its_maps_of_untrained_models(scores, model, images):
    assert scores.controls("rollout", "drop")[-2:] == ["rollout: mean map", "rollout: untrained"]
    assert scores.controls("rollout", "SaCo") == list(CONTROLS)
    subject = Subject(model, images[:16])  # the first batch
    for own, maps in (
        ("mean map", mean_of_others(signed_map("relevance", subject))),
        ("untrained", untrained_maps(subject, ["relevance"])["relevance"]),
    ):
        curves = removal_curves(subject, maps)
        values = scores.values[f"relevance: {own}"]["drop"]
        assert_close(values[:16], curves.area_between)
        assert scores.row(method="relevance")[own].mean == pytest.approx(values.mean().item(), abs=1e-6)


@pytest.mark.parametrize("control", ["center", "relevance: mean map", "relevance: untrained"])
def test_a_method_that_is_not_clearly_above_every_control_is_not_recommended_and_says_which(control):
    best = torch.linspace(0.3, 0.5, 12)
    values = {"relevance": {"drop": best}, "random": {"drop": torch.zeros(12)}, control: {"drop": best - 0.1}}
    scores = Scores([], values=values)
    assert scores.recommended("drop") == ["relevance"]
    assert scores.against_controls("relevance", "drop") == "above"
    values[control]["drop"] = best + 0.02 * torch.tensor([1.0, -1.0]).repeat(6)
    assert scores.recommended("drop") == []
    assert scores.against_controls("relevance", "drop") == f"cannot tell ({control.split(': ')[-1]})"
    values[control]["drop"] = best + 0.1
    assert scores.against_controls("relevance", "drop") == f"below {control.split(': ')[-1]}"


def test_hits_of_ten_images_have_the_interval_of_clopper_and_pearson(model, images):
    masks = torch.ones(10, 3, 5, dtype=torch.bool)
    found = localise(model, images[:10], torch.zeros(10, dtype=torch.long), masks, ["rollout"])
    hits = found.row(method="rollout")["hits"]
    assert hits == pytest.approx((1, *stats.binomtest(10, 10).proportion_ci(method="exact")))
    assert found.row(method="rollout")["untrained"] == hits  # as all places are inside


def test_ten_hits_against_ten_misses_are_compared_exactly():
    hits, misses = {"hits": torch.ones(10)}, {"hits": torch.zeros(10)}
    low = stats.binomtest(10, 10).proportion_ci(method="exact").low
    found = Scores([], values={"rollout": hits, "random": misses}).difference("rollout", "random", "hits")
    assert found == pytest.approx((1, 2 * low - 1, 1))


def test_images_of_a_cluster_count_as_one(model, images):
    some, asked, masks = images[:10], torch.zeros(10, dtype=torch.long), torch.ones(10, 3, 5, dtype=torch.bool)
    masks[:, 0] = False
    clusters = torch.arange(10) // 3
    alone, found = (localise(model, some, asked, masks, ["rollout"], clusters=of) for of in (None, clusters.tolist()))
    assert "10 images in 4 clusters" in found.note
    first = alone.values["rollout"]["energy"][:3].double().mean()
    assert found.values["rollout"]["energy"][0].item() == pytest.approx(first.item())
    assert {len(numbers) for numbers in found.values["rollout"].values()} == {4}
    with pytest.raises(ValueError, match=r"clusters have shape \(4,\) for 10 images: give a number for each"):
        localise(model, some, asked, masks, [], clusters=clusters[:4])
    assert "2 images in 1 clusters" in score(model, [images[:2]], [], clusters=torch.tensor([3, 3])).note


def test_the_own_controls_of_a_method_do_not_depend_on_the_batches(model, images):
    """But for the first image of all, which has no other one before it."""
    whole, alone = (score(model, images[:12].split(size), ["rollout"]).values for size in (12, 1))
    assert_close(alone["rollout: untrained"]["drop"], whole["rollout: untrained"]["drop"])
    assert not torch.equal(alone["rollout: mean map"]["drop"][1:], alone["uniform"]["drop"][1:])
    assert_close(alone["rollout: mean map"]["drop"][-1], whole["rollout: mean map"]["drop"][-1])


def test_a_method_that_is_named_twice_is_scored_once(model, images):
    twice = score(model, [images[:12]], ["random", "rollout", "random", "rollout"])
    assert twice.column("method")[:2] == ["random", "rollout"]
    assert len(twice.values["random"]["drop"]) == len(twice.values["rollout"]["drop"]) == 12
