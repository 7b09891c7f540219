"""What the trust report measures, compared with the measures it is made of."""

import pytest
import torch
from torch.testing import assert_close

from tests.architectures import Unread
from tests.capture.wrapped_model import Around
from tests.explain.evaluation.by_hand import planted, shortcut
from vit import VisionTransformer
from vit.explain.evaluation import permuted_attention, uniform_attention
from vit.explain.evaluation.evidence import JOINTLY, _outliers, collect
from vit.explain.evaluation.faithfulness import removal_curves
from vit.explain.evaluation.shuffled import SEEDS, head_parameters, mean_of_others, shuffled
from vit.explain.evaluation.similarity import map_correlation, top_overlap
from vit.explain.evaluation.trust import judge
from vit.explain.maps import CONTROLS, Subject, signed_map


def area(subject, maps):
    curves = removal_curves(subject, maps)
    return curves.area_between


pytestmark = pytest.mark.usefixtures("short_search")


@pytest.fixture(scope="module")
def evidence(model, images, short_search):
    return collect(Subject(model, images), ["rollout", "relevance", "uniform"], torch.arange(31) % 7)


def test_outliers_get_the_attention_of_the_last_layer_that_the_logits_read(model, images):
    with torch.no_grad():
        images = images.clone()
        images[::3, :, :2, :2] *= 40  # patches whose tokens are long
    found, expected = (_outliers(Subject(each, images)) for each in (Unread(model).eval(), model))
    assert expected[:, 1].max() > 0
    assert_close(found, expected)


def test_every_number_is_there_for_every_image_but_of_the_search(evidence):
    tensors = [
        numbers
        for measured in vars(evidence).values()
        if isinstance(measured, dict) and measured is not evidence.divergence
        for numbers in measured.values()
    ]
    assert {numbers.shape[-1] for numbers in tensors} == {31}
    assert {len(numbers) for numbers in evidence.divergence.values()} == {16}
    assert (evidence.images, evidence.patches) == (31, 15)


def test_methods_that_ignore_the_class_are_not_compared_between_classes(evidence):
    assert list(evidence.other_class) == list(evidence.random_head) == ["relevance"]
    assert list(evidence.random_weights) == ["rollout", "relevance", "uniform"]


def test_maps_are_compared_with_those_of_several_shuffles_whatever_the_sign(evidence, model, images):
    subject = Subject(model, images)
    maps = signed_map("relevance", subject)
    assert evidence.random_weights["relevance"].shape == evidence.random_head["relevance"].shape == (SEEDS, 31)
    for seed in (0, SEEDS - 1):
        untrained, head = shuffled(subject, seed), shuffled(subject, seed, head_parameters(subject))
        for found, other in ((evidence.random_weights, untrained), (evidence.random_head, head)):
            expected = map_correlation(maps, signed_map("relevance", other)).abs()
            assert_close(found["relevance"][seed], expected)


def test_the_removal_area_is_compared_with_every_control_but_the_uniform_map_whose_order_is_random(
    evidence, model, images
):
    subject = Subject(model, images)
    controls = [control for control in CONTROLS if control != "uniform"]
    compared = [control for method, control in evidence.above_control if method == "relevance"]
    assert sorted(compared) == sorted([*controls, "mean map", "untrained"])
    assert [control for method, control in evidence.above_control if method == "uniform"] == controls
    maps = signed_map("relevance", subject)
    own, others = area(subject, maps), area(subject, mean_of_others(maps))
    assert_close(evidence.above_control["relevance", "mean map"], own - others)
    assert_close(evidence.above_control["relevance", "ink"], own - area(subject, signed_map("ink", subject)))
    untrained = area(subject, signed_map("relevance", shuffled(subject, 2)))
    assert_close(evidence.above_control["relevance", "untrained"][2], own - untrained)


def test_a_uniform_map_is_constant_and_not_zero(evidence):
    assert evidence.constant["uniform"].all()
    assert not evidence.zero["uniform"].any()
    assert not evidence.constant["rollout"].any()
    assert evidence.noisy["uniform"].isnan().all()


def test_changed_predictions_are_those_of_the_tables_of_replaced_attention(evidence, model, images):
    labels = torch.arange(31) % 7
    uniform, permuted = (f(model, images, labels) for f in (uniform_attention, permuted_attention))
    for kind, where, row in (
        ("uniform", JOINTLY, uniform.row(layers="0 to 1", heads="all")),
        ("permuted", JOINTLY, permuted.row(layers="0 to 1", heads="all")),
        ("uniform", "layer 0 alone", uniform.row(layers="0", heads="all")),
        ("uniform", "layer 1 alone", uniform.row(layers="1", heads="all")),
    ):
        assert evidence.flips[kind, where].double().mean().item() == pytest.approx(row["flips"])
        assert evidence.corrected[kind, where].mean().item() == pytest.approx(row["accuracy_change"])


def test_maps_are_compared_in_their_order_and_their_highest_patches(evidence, model, images):
    maps = [signed_map(method, Subject(model, images)) for method in ("rollout", "relevance")]
    assert_close(evidence.order["rollout", "relevance"], map_correlation(*maps))
    assert_close(evidence.top["rollout", "relevance", 1], top_overlap(*maps, 1))


def test_of_64_patches_the_highest_one_and_the_highest_six_are_compared():
    model = VisionTransformer(16, 2, embed_dim=12, depth=1, num_heads=3, num_classes=7).eval()
    found = collect(Subject(model, torch.randn(7, 3, 16, 16)), ["rollout", "center"])
    assert list(found.top) == [("rollout", "center", 1), ("rollout", "center", 6)]
    assert list(found.flips) == [("uniform", JOINTLY), ("permuted", JOINTLY)]  # the only layer is all layers
    assert list(found.divergence) == [JOINTLY]


def test_the_number_of_intervals_is_that_of_all_numbers_that_are_judged(evidence):
    assert evidence.num_intervals == 1 + 1 + 3 * 2 + (7 + 7 + 5) + 3 + 3 + 4 + 2 + 1


def test_without_attention_to_the_marked_patch_the_planted_class_is_lost():
    images = planted(31)
    found = collect(Subject(shortcut(), images), [], shortcut()(images).argmax(dim=-1))
    assert found.flips["uniform", JOINTLY].double().mean() > 0.25
    assert not found.flips["uniform", "layer 0 alone"].any()
    assert not found.flips["uniform", "layer 1 alone"].any()
    assert (found.corrected["uniform", JOINTLY] == -found.flips["uniform", JOINTLY].double()).all()


def one_block(vit, images):
    return vit.forward_head(vit.norm(vit.blocks[0](vit.blocks[0](vit.embed(images)))))


def turned_between(vit, images):
    return vit.forward_head(vit.norm(vit.blocks[1](vit.blocks[0](vit.embed(images)).flip(1)).flip(1)))


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (one_block, "Around has no module for each layer that takes its tokens (B, N, D)"),
        (turned_between, "Around moves its tokens between its layers"),
    ],
)
def test_the_report_says_why_the_norms_of_tokens_were_not_measured(model, images, run, reason):
    found = collect(Subject(Around(model, run).eval(), images[:2]), ["rollout"])
    (text,) = (finding.text for finding in judge(found).findings if finding.about == "outliers")
    assert text == f"the norms of tokens were not measured: {reason}"


@pytest.mark.parametrize("pool", ["max", "early"])
def test_a_model_that_reads_more_than_its_last_tokens_has_a_report_without_the_norms_of_tokens(model, images, pool):
    def early(vit, images):
        return vit(images) + vit.head(vit.embed(images).mean(dim=1))

    def maximum(vit, images):
        return vit.head(vit.forward_features(images).amax(dim=1))

    found = collect(Subject(Around(model, early if pool == "early" else maximum).eval(), images[:2]), ["occlusion"])
    (text,) = (finding.text for finding in judge(found).findings if finding.about == "outliers")
    assert text.startswith("the norms of tokens were not measured: ")


@pytest.mark.parametrize("shape", [(2, 1), (1,), (3,)])
def test_labels_that_are_not_one_for_each_image_are_refused(model, images, shape):
    with pytest.raises(ValueError, match=rf"labels have shape \({shape[0]},.*\) for 2 images: give a class for each"):
        collect(Subject(model, images[:2]), [], torch.zeros(shape))


def test_labels_may_be_a_list(model, images):
    listed, tensor = (collect(Subject(model, images[:2]), [], labels) for labels in ([1, 2], torch.tensor([1, 2])))
    assert_close(listed.corrected, tensor.corrected)


@pytest.mark.filterwarnings("ignore:attention has negative weights")
def test_attention_with_negative_weights_is_no_share_of_outlying_tokens(images):
    differential = VisionTransformer((6, 10), 2, embed_dim=12, depth=2, num_heads=3, attention="differential").eval()
    found = collect(Subject(differential, images[:2]), ["occlusion"])
    assert "negative weights, which are no shares" in found.not_measured
