"""Sanity checks of maps: another class, uniform and permuted attention."""

import copy

import pytest
import torch

from tests.architectures import OURS
from vit import VisionTransformer
from vit.explain.evaluation.sanity import (
    other_class,
    permuted,
    permuted_attention,
    uniform_attention,
)
from vit.explain.maps import Subject

DEPTH = 3  # layers of the model


def test_a_model_that_ignores_the_class_has_the_same_map_for_the_runner_up(model, images):
    found = other_class(Subject(model, images), ["rollout", "relevance", "input_gradient"])
    assert found["rollout"].mean().item() == pytest.approx(1)
    assert found["relevance"].mean() < 0.9
    assert found["input_gradient"].mean() < 0.9


def test_uniform_attention_in_a_layer_is_what_queries_of_zero_give(model, images):
    labels = model(images).argmax(dim=-1)
    labels[0] = (labels[0] + 1) % 7
    table = uniform_attention(model, images, labels)
    for layer in range(3):
        even = copy.deepcopy(model)
        with torch.no_grad():
            even.blocks[layer].attn.qkv.weight[:12] = 0
            even.blocks[layer].attn.qkv.bias[:12] = 0
            plain, logits = model(images), even(images)
        row = table.row(layers=str(layer), heads="all")
        assert row["flips"] == pytest.approx((logits.argmax(-1) != plain.argmax(-1)).double().mean().item())
        divergence = torch.nn.functional.kl_div(
            logits.log_softmax(-1), plain.log_softmax(-1), reduction="batchmean", log_target=True
        )
        assert row["divergence"] == pytest.approx(divergence.item(), rel=1e-4)
        right = (logits.argmax(-1) == labels).double().mean() - (plain.argmax(-1) == labels).double().mean()
        assert row["accuracy_change"] == pytest.approx(right.item())


def test_uniform_attention_in_one_head_is_what_its_queries_of_zero_give(model, images):
    even = copy.deepcopy(model)
    with torch.no_grad():
        even.blocks[1].attn.qkv.weight[8:12] = 0
        even.blocks[1].attn.qkv.bias[8:12] = 0
        before, after = (m(images).log_softmax(-1) for m in (model, even))
    row = uniform_attention(model, images).row(layers="1", heads="2")
    assert row["divergence"] == pytest.approx((before.exp() * (before - after)).sum(-1).mean().item(), rel=1e-4)
    assert "accuracy_change" not in row


def test_the_first_layers_are_also_replaced_together(model, images):
    even = copy.deepcopy(model)
    with torch.no_grad():
        for block in even.blocks[:2]:
            block.attn.qkv.weight[:12] = 0
            block.attn.qkv.bias[:12] = 0
        before, after = (m(images).log_softmax(-1) for m in (model, even))
    table = uniform_attention(model, images)
    assert len(table.rows) == 3 * (3 + 1) + 2
    row = table.row(layers="0 to 1")
    assert row["divergence"] == pytest.approx((before.exp() * (before - after)).sum(-1).mean().item(), rel=1e-4)


def test_permuted_rows_keep_their_weights_and_zeros_stay_zero(images):
    attn = torch.rand(31, 3, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    attn[..., 2:4] = 0
    shuffled = permuted(images)(0, attn)
    assert torch.equal(shuffled.sort(dim=-1).values, attn.sort(dim=-1).values)
    assert torch.equal(shuffled == 0, attn == 0)
    assert (shuffled != attn).any(dim=-1).double().mean() > 0.95
    assert not torch.equal(permuted(images)(1, attn), shuffled)
    assert not torch.equal(permuted(images, seed=1)(0, attn), shuffled)


def test_each_row_is_permuted_by_itself_and_all_orders_are_drawn(images):
    attn = torch.arange(1.0, 4.0).expand(31, 5, 500, 3)
    orders, counts = permuted(images)(0, attn).reshape(-1, 3).unique(dim=0, return_counts=True)
    assert len(orders) == 6
    assert (counts / 77500 - 1 / 6).abs().max() < 0.02


def test_permuted_attention_depends_on_the_image_and_not_on_the_batch(images):
    attn = torch.rand(31, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    assert torch.equal(permuted(images)(0, attn)[4:5], permuted(images[4:5])(0, attn[4:5]))


def test_permuted_attention_changes_predictions_where_attention_is_uneven_only(model, images):
    found = permuted_attention(model, images)
    assert [row["layers"] for row in found.rows] == [row["layers"] for row in uniform_attention(model, images).rows]
    assert found.row(layers="0 to 2")["divergence"] > 1e-3
    even = copy.deepcopy(model)
    with torch.no_grad():
        for block in even.blocks:
            block.attn.qkv.weight[:12] = 0
            block.attn.qkv.bias[:12] = 0
    assert permuted_attention(even, images).row(layers="0 to 2")["divergence"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("measure", [uniform_attention, permuted_attention])
def test_predictions_that_cannot_change_are_refused(measure, images):
    model = VisionTransformer(**OURS | {"num_classes": 1}).eval()
    with pytest.raises(ValueError, match="has one logit only, whose probability by softmax is always 1"):
        measure(model, images[:2])


@pytest.mark.parametrize("measure", [uniform_attention, permuted_attention])
def test_labels_in_a_column_are_refused_which_would_be_compared_with_every_prediction(measure, model, images):
    with pytest.raises(ValueError, match=r"labels have shape \(2, 1\) for 2 images: give a class for each"):
        measure(model, images[:2], torch.tensor([[1], [2]]))


@pytest.mark.parametrize("measure", [uniform_attention, permuted_attention])
def test_predictions_of_several_labels_are_refused(measure, images):
    model = VisionTransformer(**OURS).eval()
    model.pretrained_cfg = {"thresholds": [0.5] * 7}
    with pytest.raises(ValueError, match="gives several labels an image, and the change of predictions is measured"):
        measure(model, images[:2])
