"""Sanity checks of maps: randomised layers, another class, uniform attention."""

import copy

import pytest
import torch
from scipy.stats import spearmanr
from torch.testing import assert_close

from vit import VisionTransformer
from vit.explain.evaluation.sanity import other_class, randomised_layers, rank_correlation, uniform_attention
from vit.explain.maps import METHODS

DEPTH = 3  # layers of the model


def test_rank_correlation_is_spearmans_also_with_ties():
    maps, others = torch.randint(4, (3, 3, 5)).float(), torch.randint(4, (3, 3, 5)).float()
    expected = [spearmanr(one.flatten(), other.flatten()).statistic for one, other in zip(maps, others, strict=True)]
    assert_close(rank_correlation(maps, others), torch.tensor(expected, dtype=torch.float32))


def test_constant_maps_are_like_themselves_and_like_nothing_else():
    constant, rising = torch.ones(1, 2, 2), torch.arange(4.0).view(1, 2, 2)
    assert rank_correlation(constant, constant).item() == 1
    assert rank_correlation(constant, rising).item() == 0


def test_layers_are_randomised_from_the_head_down_and_the_model_keeps_its_weights(model, images):
    before = copy.deepcopy(model.state_dict())
    similar = randomised_layers(model, images, ["relevance", "center"])
    assert list(similar["relevance"]) == ["head", "layer 2", "layer 1", "layer 0"]
    assert [interval.mean for interval in similar["center"].values()] == [1, 1, 1, 1]
    assert similar["relevance"]["layer 0"].mean < 0.9
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_randomised_layers_stay_randomised(model, images):
    # Attention of the last layer, seen from the class token, does not depend on the head but on all layers.
    similar = randomised_layers(model, images, ["attention"])["attention"]
    assert similar["head"].mean == 1
    assert similar["layer 2"].mean < 0.9
    assert similar["layer 0"].mean < 0.9


def test_the_head_is_all_that_follows_the_last_layer(model, images, monkeypatch):
    def last_weights(subject):
        return subject.model.blocks[2].mlp.fc2.weight.flatten()[: 5 * 15].reshape(5, 3, 5)

    monkeypatch.setitem(METHODS, "last_weights", last_weights)
    similar = randomised_layers(model, images, ["last_weights"])["last_weights"]
    assert similar["head"].mean == 1
    assert similar["layer 2"].mean < 0.9


def test_a_model_that_ignores_the_class_has_the_same_map_for_the_runner_up(model, images):
    found = other_class(model, images, ["rollout", "relevance", "input_gradient"])
    assert found["rollout"].mean == 1
    assert found["relevance"].mean < 0.9
    assert found["input_gradient"].mean < 0.9


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


def test_layers_that_share_a_module_cannot_be_randomised_one_by_one(model, images):
    shared = VisionTransformer((6, 10), 2, embed_dim=12, depth=3, num_heads=3).eval()
    shared.blocks = torch.nn.ModuleList([shared.blocks[0]] * 3)
    with pytest.raises(ValueError, match="has no module for each layer"):
        randomised_layers(shared, images, ["rollout"])
