"""The trust report: its sentences follow the measurements, and say no more."""

import copy
import re
from dataclasses import fields, replace
from functools import cache

import pytest
import torch
from scipy import stats
from torch import nn

from tests.explain.evaluation.by_hand import bag_of_patches, blind, constant, planted, shortcut, untrained
from vit import VisionTransformer
from vit.capture import capture_attention
from vit.explain.evaluation.evidence import Evidence, collect
from vit.explain.evaluation.trust import AGREE, FAR, LEAST, SAME, UNRELATED, USED, judge, trust_report
from vit.explain.maps import Subject

METHODS = ["attention", "relevance", "occlusion"]
IMAGES = 71  # for the models by hand


pytestmark = pytest.mark.usefixtures("short_search")


@pytest.fixture
def without_advice(monkeypatch):
    """How many images would decide is not computed, which takes most of a report: hundreds are about their levels."""
    monkeypatch.setattr("vit.explain.evaluation.verdicts.images_needed", lambda *_: None)


@pytest.fixture(scope="module")
def report(model, images, short_search):
    return trust_report(model, images, ["rollout", "center", "token_drop"])


@cache
def measured(of_model):
    """What is measured on a model by hand, with a search that is long enough where it matters."""
    noise = torch.randn(IMAGES, 3, 6, 10, generator=torch.Generator().manual_seed(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "vit.explain.evaluation.evidence.SEARCH_STEPS", 70 if of_model in (shortcut, bag_of_patches) else 3
        )
        return collect(Subject(of_model(), planted(IMAGES) if of_model is shortcut else noise), METHODS)


def report_on(of_model):
    return judge(measured(of_model))


def findings(report, about):
    return [finding for finding in report.findings if finding.about == about]


def test_rollout_does_not_depend_on_the_class(report):
    (finding,) = findings(report, "rollout: class")
    assert finding.level == "red"
    assert finding.text == (
        "rollout does not depend on the class (by its definition): do not use it to justify the label"
    )


def test_every_method_gets_the_same_checks_and_all_pairs_are_compared(report):
    for method in ("rollout", "center", "token_drop"):
        for about in ("class", "weights", "noise", "faith"):
            assert len(findings(report, f"{method}: {about}")) == 1
    assert len(findings(report, "agreement")) == 3


def test_a_control_map_depends_neither_on_the_class_nor_on_the_weights(report):
    assert findings(report, "center: class")[0].level == "red"
    assert findings(report, "center: weights")[0].level == "red"
    assert findings(report, "center: faith")[0].level != "green"


FAITH = {"random": torch.full((97,), 0.3), "edges": torch.full((97,), 0.2)}


@pytest.mark.parametrize(
    ("changed", "level", "words"),
    [
        ({}, "green", "it marks patches that the prediction depends on, better than every control (removal area above"),
        ({"edges": torch.full((97,), LEAST / 2)}, "red", "it marks patches no better than the control edges (removal"),
        ({"edges": torch.full((97,), -0.4)}, "red", "it marks patches no better than the control edges (removal"),
        ({"edges": torch.linspace(-0.1, 0.2, 97)}, "amber", "cannot tell on 97 images whether it marks patches better"),
        ({"untrained": torch.full((8, 97), 0.1)}, "green", "it marks patches that the prediction depends on"),
        ({"untrained": torch.linspace(-0.2, 0.6, 8)[:, None].expand(8, 97)}, "amber", "cannot tell on 97 images whet"),
    ],
)
def test_faith_is_judged_against_the_best_control_by_a_least_effect_and_the_spread_of_shuffles(changed, level, words):
    maps = {"m": torch.zeros(97, dtype=torch.bool)}
    above = {("m", control): values for control, values in (FAITH | changed).items()}
    evidence = Evidence(97, 15, zero=maps, constant=maps, noisy={"m": torch.ones(97)}, above_control=above)
    (finding,) = findings(judge(evidence), "m: faith")
    assert finding.level == level
    assert finding.text.startswith(words)
    assert f"above that of {next(iter(changed), 'edges')}: " in finding.text


@pytest.mark.parametrize(
    ("above", "level", "words"),
    [
        (torch.full((8, 97), 0.3), "green", "it depends on the trained weights"),
        (torch.zeros(8, 97), "amber", "it changes with the weights, as noise does, but is not clearly better"),
        (torch.linspace(-0.5, 1, 8)[:, None].expand(8, 97), "amber", "but is not clearly better (removal area 0.25 (-"),
    ],
)
def test_a_map_depends_on_training_only_if_it_is_better_than_those_of_untrained_models(above, level, words):
    maps, far = {"m": torch.zeros(97, dtype=torch.bool)}, {"m": torch.full((8, 97), 0.1)}
    compared = {("m", "untrained"): above}
    evidence = Evidence(97, 15, zero=maps, constant=maps, noisy=maps, random_weights=far, above_control=compared)
    evidence.noisy = {"m": torch.ones(97)}
    (finding,) = findings(judge(evidence), "m: weights")
    assert finding.level == level
    assert words in finding.text


def test_the_shuffles_decide_nothing_where_they_disagree():
    maps, spread = {"m": torch.zeros(97, dtype=torch.bool)}, torch.linspace(0.0, 0.8, 8)[:, None].expand(8, 97)
    evidence = Evidence(97, 15, zero=maps, constant=maps, noisy={"m": torch.ones(97)}, random_weights={"m": spread})
    (finding,) = findings(judge(evidence), "m: weights")
    assert finding.level == "amber"
    assert "cannot tell on 97 images whether it depends on the trained weights" in finding.text
    assert finding.more == "more images would hardly change this"


@pytest.mark.usefixtures("without_advice")
def test_an_untrained_model_and_the_centre_get_a_green_faith_or_weights_in_at_most_5_of_100_reports(monkeypatch):
    monkeypatch.setattr("vit.explain.evaluation.evidence.SEARCH_STEPS", 1)
    green = 0
    for seed in range(100):
        torch.manual_seed(seed)
        model = VisionTransformer(8, 2, 1, embed_dim=12, depth=1, num_heads=3, num_classes=10).eval()
        evidence = collect(Subject(model, torch.randn(17, 1, 8, 8)), ["rollout", "relevance", "center"])
        found = judge(evidence).findings
        green += any(f.level == "green" for f in found if f.about.endswith((": faith", ": weights")))
    assert green <= 5


def test_a_map_of_the_tokens_that_predictions_depend_on_is_green(report):
    (finding,) = findings(report, "token_drop: faith")
    assert finding.level == "green"
    assert "marks patches that the prediction depends on" in finding.text


def test_attention_is_replaced_in_all_layers_jointly_and_in_each_alone_and_the_report_says_which(report):
    texts = [finding.text for finding in findings(report, "attention")]
    starts = ["uniform attention in all layers jointly", "permuted attention in all layers jointly"]
    starts += ["uniform attention in layer 0 alone", "uniform attention in layer 1 alone"]
    starts += ["other attention of all layers jointly", "other attention of layer 1 alone"]
    assert len(texts) == len(starts)
    assert all(text.startswith(start) for text, start in zip(texts, starts, strict=True))


def test_attention_that_is_already_uniform_explains_nothing(images):
    model = blind()
    many = torch.randn(97, 3, 6, 10, generator=torch.Generator().manual_seed(2))
    labels = model(many).argmax(dim=-1)
    found = findings(trust_report(model, many, ["occlusion"], labels), "attention")
    assert [finding.level for finding in found[:4]] == ["red", "red", "amber", "amber"]
    assert re.fullmatch(
        r"uniform attention in all layers jointly changes 0.0 % \(0.0 to \d.\d %\) of predictions \(accuracy \+0.0 "
        r"points\): they hardly depend on where the model looks, so a map of attention does not explain them",
        found[0].text,
    )
    assert "few depend on this layer by itself, as others may make up for it" in found[2].text


def test_a_model_that_finds_a_planted_patch_twice_depends_on_attention_although_on_no_layer_alone():
    jointly, permuted, first, second, *_ = findings(report_on(shortcut), "attention")
    assert jointly.level == permuted.level == "green"
    assert "they depend on where the model looks" in jointly.text
    for alone in (first, second):
        assert alone.level == "amber"
        assert "few depend on this layer by itself" in alone.text
    assert not any("does not explain" in finding.text for finding in report_on(shortcut).findings)


def test_attention_that_has_to_look_at_the_planted_patch_has_no_adversary_far_away():
    for finding in findings(report_on(shortcut), "attention")[-2:]:
        assert finding.level == "amber"  # a search is no proof
        assert "the search found none that is far away, though there may be" in finding.text


def test_attention_that_does_not_matter_is_one_of_many_that_fit():
    jointly, alone = findings(report_on(bag_of_patches), "attention")[-2:]
    for finding, where in ((jointly, "all layers jointly"), (alone, "layer 1 alone")):
        assert finding.level == "amber"
        assert finding.text.startswith(f"other attention of {where} gives the same predictions at a divergence of 0.5")
        assert finding.text.endswith("(16 images): a picture of attention is one of many that fit")


def test_maps_that_hit_the_planted_patch_agree_whatever_the_order_of_the_others():
    agreement = findings(report_on(shortcut), "agreement")
    for finding in agreement:
        assert finding.level == "green"
        assert "the highest patch in common 1.00 (0.90 to 1.00), by chance 0.07" in finding.text


@pytest.mark.parametrize(
    ("order", "same", "level", "verdict"),
    [
        (0.1, 97, "green", "rollout and relevance agree on the highest patch ("),
        (0.8, 97, "green", "rollout and relevance agree on the order of all patches and the highest patch ("),
        (0.8, 9, "green", "rollout and relevance agree on the order of all patches ("),
        (0.1, 9, "amber", "rollout and relevance agree little, but more than by chance ("),
        (-0.1, 9, "red", "rollout and relevance disagree ("),
        (-0.1, 48, "amber", "cannot tell on 97 images whether rollout and relevance agree ("),
    ],
)
def test_methods_agree_in_the_order_of_patches_or_in_the_highest_ones(order, same, level, verdict):
    pair = "rollout", "relevance"
    evidence = Evidence(97, 15, order={pair: torch.full((97,), order)}, top={(*pair, 1): torch.arange(97.0) < same})
    (finding,) = findings(judge(evidence), "agreement")
    assert finding.level == level
    assert finding.text.startswith(verdict)
    assert f"rank correlation {order:.2f} ({order:.2f} to {order:.2f}); the highest patch in common" in finding.text


def test_of_many_patches_the_highest_tenth_is_compared_as_well():
    pair = "rollout", "relevance"
    common = {(*pair, 1): torch.zeros(97), (*pair, 6): torch.full((97,), 5 / 6)}
    evidence = Evidence(97, 64, order={pair: torch.zeros(97)}, top=common)
    (finding,) = findings(judge(evidence), "agreement")
    assert finding.text.startswith("rollout and relevance agree on the highest 6 patches (")
    assert finding.text.endswith("the highest 6 patches in common 0.83 (0.83 to 0.83), by chance 0.09)")


def test_a_bag_of_patches_does_not_depend_on_attention_and_says_that_the_map_is_zero():
    report = report_on(bag_of_patches)
    jointly, permuted = findings(report, "attention")[:2]
    assert jointly.level == permuted.level == "red"
    (zero,) = findings(report, "relevance: zero")
    assert (zero.level, zero.text) == ("red", "the map is zero on 71 of 71 images: it marks no patch there")
    assert not findings(report, "relevance: weights")
    assert findings(report, "occlusion: faith")[0].level == "green"


def test_zero_maps_of_a_constant_model_do_not_agree():
    report = report_on(constant)
    for method in ("relevance", "occlusion"):
        (zero,) = findings(report, f"{method}: zero")
        assert zero.level == "red"
    agreement = findings(report, "agreement")[2]
    assert agreement.level == "amber"
    assert agreement.text == "relevance and occlusion are both constant: they neither agree nor disagree"


def test_a_uniform_map_is_said_to_be_constant(model, images):
    report = trust_report(model, images, ["uniform", "center"])
    (finding,) = findings(report, "uniform: constant")
    assert finding.text == "the map is constant on 31 of 31 images: it marks no patch there"
    assert findings(report, "uniform: class")[0].level == "red"
    assert not findings(report, "center: constant")


def test_an_attention_that_is_no_distribution_is_reported_as_not_searched(images):
    torch.manual_seed(0)
    model = VisionTransformer((6, 10), 2, embed_dim=12, depth=2, num_heads=3, attention="talking").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    finding = findings(trust_report(model, images[:7], ["center"]), "attention")[-1]
    assert finding.level == "amber"
    assert "was not searched: the attention of layer 0 is no distribution" in finding.text


def at_the_median(values):
    return (values.mean(dim=0) if values.ndim == 2 else values).nanquantile(0.5).item()


@cache
def value_of(of_model, about, start):
    """The number of the population that a sentence with this start is about."""
    evidence = measured(of_model)
    method, _, check = about.partition(": ")
    of_check = {"class": "other_class", "weights": "random_weights", "noise": "noisy"}
    if check in of_check:
        return at_the_median(getattr(evidence, of_check[check])[method])
    if check == "faith":
        controls = [values for (name, _), values in evidence.above_control.items() if name == method]
        return min(map(at_the_median, controls))
    if found := re.match(r"(\w+) attention in (.+) changes", start):
        return evidence.flips[found.groups()].double().mean().item()
    where = re.match(r"other attention of (.+) gives", start)[1]
    return evidence.divergence[where].quantile(0.5).item()


# What a sentence claims of that number. A sentence with none of these words claims nothing.
CLAIMS = {
    "hardly depends on the class": lambda x: x > SAME,
    ": the map depends on the class, but perhaps little": lambda x: x < SAME,
    ": the map depends on the class": lambda x: x < UNRELATED,
    "not on the trained weights": lambda x: x > UNRELATED,
    "it depends on the trained weights": lambda x: x < UNRELATED,
    "it is stable": lambda x: x > SAME,
    "reorders its patches": lambda x: x < UNRELATED,
    "reorders some of its patches": lambda x: x < SAME,
    "it marks patches that": lambda x: x > LEAST,
    "no better than the control": lambda x: x < LEAST,
    "hardly depend on where": lambda x: x < USED,
    "few depend on this layer": lambda x: x < USED,
    "they depend on where": lambda x: x > USED,
    "one of many that fit": lambda x: x > FAR,
    "none that is far away": lambda x: x < FAR,
}


def is_wrong(finding, of_model):
    if "cannot tell" in finding.text or "by its definition" in finding.text:
        return False
    claim = next((claim for words, claim in CLAIMS.items() if words in finding.text), None)
    start = re.match(r"\D+\d?\D+", finding.text)[0]
    return claim is not None and not claim(value_of(of_model, finding.about, start))


def some_of(evidence, chosen):
    """The measurements of some of the images."""
    parts = {"images": len(chosen)}
    for name in (field.name for field in fields(evidence)):
        value = getattr(evidence, name)
        if isinstance(value, dict):
            parts[name] = {key: numbers[..., chosen % numbers.shape[-1]] for key, numbers in value.items()}
        elif isinstance(value, torch.Tensor):
            parts[name] = value[chosen]
    return replace(evidence, **parts)


@pytest.mark.usefixtures("without_advice")
@pytest.mark.parametrize("of_model", [untrained, constant, bag_of_patches, shortcut])
def test_of_200_reports_on_other_images_no_more_are_wrong_than_the_level_promises(of_model):
    generator = torch.Generator().manual_seed(4)
    wrong = claims = 0
    for _ in range(200):
        found = judge(some_of(measured(of_model), torch.randint(IMAGES, (59,), generator=generator))).findings
        judged = [f for f in found if re.search(r": (class|weights|noise|faith)$|^attention$", f.about)]
        wrong += any(is_wrong(finding, of_model) for finding in judged)
        claims += sum("cannot tell" not in finding.text for finding in judged)
    assert claims > 200
    assert wrong <= 0.05 * 200


@pytest.mark.usefixtures("without_advice")
@pytest.mark.parametrize("images", [13, 59, 211])
def test_of_200_reports_on_numbers_at_the_thresholds_about_the_level_claim_anything_at_all(images):
    generator = torch.Generator().manual_seed(images)
    median = torch.tensor(2.0).log()  # of the exponential distribution: skewed, as correlations near 1 are
    names = [f"method {number}" for number in range(5)]

    def at(threshold):
        return {name: threshold + median - torch.empty(images).exponential_(generator=generator) for name in names}

    claiming = 0
    for _ in range(200):
        nothing = {name: torch.zeros(images, dtype=torch.bool) for name in names}
        controls = {(name, "random"): values for name, values in at(LEAST).items()}
        evidence = Evidence(images, 15, nothing, nothing, at(SAME), at(2 * SAME), at(UNRELATED), at(SAME), controls)
        evidence.order["method 0", "method 1"] = at(AGREE)["method 0"]
        evidence.flips["uniform", "layer 0 alone"] = torch.rand(images, generator=generator) < USED
        evidence.divergence["layer 0 alone"] = at(FAR)["method 0"]
        found = [finding for finding in judge(evidence).findings if finding.about != "outliers"]
        claiming += any("cannot tell" not in finding.text for finding in found)
    # Any claim is wrong here. The level is reached, so that chance decides whether it is a little more in 200.
    assert claiming <= stats.binom.ppf(0.99, 200, 0.05)


def test_the_level_is_shared_by_all_intervals_and_printed(report):
    assert report.intervals == 1 + 1 + 3 * 2 + (7 + 7 + 5) + 3 + 3 + 4 + 2 + 1
    assert (
        f"All {report.intervals} intervals together hold with 95 % confidence, each with 99.88 % (Bonferroni)"
        in str(report)
    )


def test_tokens_of_outlying_norm_are_found_with_the_attention_they_get(images):
    torch.manual_seed(0)
    model = VisionTransformer((6, 10), 2, embed_dim=12, depth=2, num_heads=3, num_classes=7).eval()

    class Swell(nn.Module):
        """Makes the token of one patch 100 times as long, like the high-norm tokens of large models."""

        def forward(self, tokens, grid):
            longer = torch.ones(tokens.shape[1])
            longer[1] = 100.0  # behind the class token
            return self.block(tokens, grid) * longer[:, None]

    plain = copy.deepcopy(model)
    swell = Swell()
    swell.block = model.blocks[0]
    model.blocks[0] = swell
    few, every = (findings(trust_report(m, images, ["center"]), "outliers")[0] for m in (plain, model))
    assert not few.text.startswith("31 of 31")
    assert every.text.startswith("31 of 31 images have patch tokens of outlying norm before the last layer: ")
    share, mass = map(float, re.findall(r"[\d.]+ (?=%)", every.text))
    assert "% of the last attention to patches" in every.text  # less what the class token keeps
    with torch.no_grad():
        norms = model.blocks[0](model.embed(images), model.patch_embed.grid_size)[:, 1:].norm(dim=-1)
        received = capture_attention(model, images)[-1].mean(dim=1)[:, 0, 1:]  # by the patches, from the class token
    is_outlier = norms > norms.median() + 6 * (norms - norms.median()).abs().median()
    assert share == pytest.approx(100 * is_outlier.double().mean().item(), abs=0.06)
    of_images = (received * is_outlier).sum(dim=-1) / received.sum(dim=-1)
    assert mass == pytest.approx(100 * of_images.mean().item(), abs=0.06)


@pytest.mark.parametrize(
    ("mass", "level", "words"),
    [
        (0.3, "red", "may serve as memory"),
        (0.05, "green", "less than 3 times"),
        (None, "amber", "cannot tell on 31 images"),
    ],
)
def test_outliers_are_red_only_where_they_clearly_get_too_much_attention(mass, level, words):
    received = torch.full((31,), mass) if mass else torch.rand(31, generator=torch.Generator().manual_seed(0)) * 0.5
    evidence = Evidence(31, 15, outliers=torch.stack([torch.full((31,), 1 / 15), received], dim=-1))
    (finding,) = findings(judge(evidence), "outliers")
    assert finding.level == level
    assert words in finding.text


def test_no_outliers_on_a_few_images_are_no_proof_that_there_are_none():
    few, many = (findings(judge(Evidence(n, 15, outliers=torch.zeros(n, 2))), "outliers")[0] for n in (7, 97))
    assert (few.level, many.level) == ("amber", "green")


@pytest.mark.parametrize("of_model", [untrained, constant, shortcut])
def test_every_amber_sentence_says_whether_more_images_would_decide_it_and_no_other_does(of_model):
    for finding in report_on(of_model).findings:
        assert bool(finding.more) == (finding.level == "amber")
        assert not finding.more or "images " in finding.more


ALONE = ("uniform", "layer 0 alone")


@pytest.mark.parametrize(
    ("measured", "more"),
    [
        ({"noisy": {"m": torch.linspace(0.85, 0.97, 97)}}, r"about [\d,]+ images would probably decide it"),
        ({"noisy": {"m": torch.linspace(0.4, 0.9, 97)}}, "more images would hardly change this"),  # some are reordered
        ({"noisy": {"m": torch.linspace(0.2, 0.75, 97)}}, r"about [\d,]+ images would probably decide it"),
        ({"noisy": {"m": torch.linspace(0.2, 0.7, 3)}}, "more images are needed to decide it"),
        ({"flips": {ALONE: torch.arange(97) < 14}}, r"about [\d,]+ images would probably decide it"),
        ({"flips": {ALONE: torch.arange(97) < 1}}, "more images would hardly change this"),
        ({"divergence": {"all layers": torch.linspace(0.2, 0.45, 16)}}, ".* hardly change this: at most 16 images .*"),
        ({"divergence": {"all layers": torch.linspace(0.2, 0.45, 9)}}, "more images may decide it, but at most 16 .*"),
        ({"outliers": torch.zeros(17, 2)}, r"about \d\d images would probably decide it"),
        (
            {"outliers": torch.stack([torch.full((97,), 0.1), torch.linspace(0.2, 0.44, 97)], dim=1)},
            r"about [\d,]+ such images would probably decide it",
        ),
    ],
)
def test_an_amber_sentence_says_how_many_images_would_decide_it(measured, more):
    values = next(iter(measured.values()))
    images = len(values) if isinstance(values, torch.Tensor) else len(next(iter(values.values())))
    maps = {"m": torch.zeros(images, dtype=torch.bool)}
    above = {"m": torch.ones(images)}  # by itself green
    evidence = Evidence(
        images,
        15,
        zero=maps,
        constant=maps,
        above_control={("m", "random"): torch.ones(images)},
        **{"noisy": above} | measured,
    )
    of = {"noisy": "m: noise", "outliers": "outliers"}.get(next(iter(measured)), "attention")
    (finding,) = findings(judge(evidence), of)
    assert finding.level == "amber"
    assert re.fullmatch(more, finding.more)


def test_an_unknown_method_is_named(model, images):
    with pytest.raises(ValueError, match="unknown method 'rolout': choose one of attention, rollout"):
        trust_report(model, images, ["rolout"])


def test_one_image_gives_no_verdict_but_what_holds_by_definition(model, images):
    report = trust_report(model, images[:1], ["rollout", "token_drop"])
    assert findings(report, "rollout: class")[0].level == "red"
    others = [finding for finding in report.findings if finding.about != "rollout: class"]
    assert {finding.level for finding in others} == {"amber"}
    *judged, searched, outliers = others
    assert all("cannot tell on 1 image" in finding.text for finding in judged)
    assert (
        "was not searched: it takes more than a hundred passes, and fewer than 6 images give no verdict"
        in searched.text
    )
    assert "(0.00 to 1.00 of all images)" in outliers.text
    assert "measured on 1 image." in str(report)


def test_a_model_of_one_logit_has_no_other_class(images):
    model = VisionTransformer((6, 10), 2, embed_dim=12, depth=1, num_heads=3, num_classes=1).eval()
    with pytest.raises(ValueError, match="one logit only"):
        trust_report(model, images, ["rollout"])


@pytest.fixture(scope="module")
def frames(model, images, short_search):
    """What is measured on seven images, and on three frames of each that are equal."""
    one, several = (
        collect(Subject(model, some), ["rollout", "relevance"]) for some in (images[:7], images[:7].repeat(3, 1, 1, 1))
    )
    return one, several.of_clusters(torch.arange(7).repeat(3))


def test_a_cluster_of_equal_frames_counts_as_one_image(frames):
    one, clustered = frames
    assert (clustered.images, clustered.clusters, clustered.independent) == (21, 7, 7)
    for name in ("other_class", "random_weights", "random_head", "noisy", "order", "top", "flips"):
        expected, found = getattr(one, name), getattr(clustered, name)
        assert expected.keys() == found.keys()
        for key, values in expected.items():
            torch.testing.assert_close(found[key], values.double(), atol=1e-4, rtol=0)
    torch.testing.assert_close(clustered.outliers.shape, one.outliers.shape)


def test_the_report_says_that_it_is_about_clusters(frames):
    _, clustered = frames
    report = judge(clustered)
    assert "measured on 21 images in 7 clusters, over whose means all is said" in str(report)
    said = " ".join(finding.text + finding.more for finding in report.findings)
    assert "7 clusters" in said
    assert not re.search(r"\b(7|21) images", said)
    assert report.clusters == 7


def test_maps_without_a_number_are_left_out_of_the_mean_of_their_cluster():
    correlations = torch.tensor([0.2, torch.nan, 0.6, torch.nan])
    evidence = Evidence(4, 15, noisy={"m": correlations}, random_weights={"m": correlations.repeat(2, 1)})
    found = evidence.of_clusters(torch.tensor([5, 5, 3, 4]))
    for values in (found.noisy["m"], found.random_weights["m"][1]):
        torch.testing.assert_close(values, torch.tensor([0.6, torch.nan, 0.2]).double(), equal_nan=True)


def test_frames_that_are_taken_for_images_give_shorter_intervals_than_their_clusters(model, images):
    few = images[:4].repeat(8, 1, 1, 1)
    alone, clustered = (
        trust_report(model, few, ["rollout"], clusters=of) for of in (None, (torch.arange(4).repeat(8)).tolist())
    )
    assert {finding.level for finding in clustered.findings if "noise" in finding.about} == {"amber"}
    assert (alone.clusters, clustered.clusters) == (None, 4)


def test_clusters_that_are_not_one_for_each_image_are_refused(model, images):
    with pytest.raises(ValueError, match=r"clusters have shape \(3,\) for 4 images: give a number for each"):
        trust_report(model, images[:4], ["rollout"], clusters=[0, 0, 1])
