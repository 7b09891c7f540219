"""The trust report: its sentences follow the measurements."""

import copy
import re

import pytest
import torch
from torch import nn

from vit import VisionTransformer
from vit.capture import capture_attention
from vit.explain.evaluation.trust import trust_report


@pytest.fixture(scope="module")
def report(model, images):
    return trust_report(model, images, ["rollout", "center", "token_drop"])


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


def test_a_map_of_the_tokens_that_predictions_depend_on_is_green(report):
    (finding,) = findings(report, "token_drop: faith")
    assert finding.level == "green"
    assert "marks patches that the prediction depends on" in finding.text


def test_attention_that_is_already_uniform_explains_nothing(images):
    blind = VisionTransformer((6, 10), 2, embed_dim=12, depth=2, num_heads=3, num_classes=7).eval()
    with torch.no_grad():
        for block in blind.blocks:
            block.attn.qkv.weight[:12] = 0  # with queries of zero attention is uniform
    labels = blind(images).argmax(dim=-1)
    found = findings(trust_report(blind, images, [], labels), "attention")
    assert found[0].text == (
        "uniform attention in layers 0 to 1 changes 0.0 % of predictions (accuracy +0.0 points): predictions hardly "
        "depend on it, so a map of it does not explain them"
    )
    assert all(finding.level == "red" for finding in found)


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
    shares = []
    for candidate in (plain, model):
        (finding,) = findings(trust_report(candidate, images, []), "outliers")
        share, mass = [*map(float, re.findall(r"[\d.]+ (?=%)", finding.text)), 0.0, 0.0][:2]
        assert (finding.level == "red") == (mass > 3 * share)
        shares.append(share)
    with torch.no_grad():
        norms = model.blocks[0](model.embed(images), model.patch_embed.grid_size)[:, 1:].norm(dim=-1)
        received = capture_attention(model, images)[-1].mean(dim=1)[:, 0, 1:]  # by the patches, from the class token
    is_outlier = norms > norms.median() + 6 * (norms - norms.median()).abs().median()
    assert mass == pytest.approx(100 * received[is_outlier].sum().item() / received.sum().item(), abs=0.06)
    assert shares[1] - shares[0] == pytest.approx(100 / 15, abs=0.11)  # one patch in fifteen; texts round to 0.1


def test_it_prints_as_lines_and_as_html_with_marks_besides_colours(report):
    lines = str(report).splitlines()
    assert lines[0].startswith("red    rollout: class")
    assert lines[-1].endswith("measured on 12 images: fewer than 100 show tendencies only")
    html = report._repr_html_()
    assert "&#10007; red" in html
    assert "&#10003; green" in html


def test_an_unknown_method_is_named(model, images):
    with pytest.raises(ValueError, match="unknown method 'rolout': choose one of attention, rollout"):
        trust_report(model, images, ["rolout"])


def test_few_images_are_no_ground_for_a_verdict(model, images):
    report = trust_report(model, images[:1], ["token_drop"])
    assert findings(report, "token_drop: faith")[0].level == "amber"
    (attention,) = findings(report, "attention")
    assert attention.level == "amber"
    assert "too few images to tell" in attention.text
    assert str(report).endswith("measured on 1 image: fewer than 100 show tendencies only")


def test_a_model_of_one_logit_has_no_other_class(images):
    model = VisionTransformer((6, 10), 2, embed_dim=12, depth=1, num_heads=3, num_classes=1).eval()
    with pytest.raises(ValueError, match="one logit only"):
        trust_report(model, images, ["rollout"])
