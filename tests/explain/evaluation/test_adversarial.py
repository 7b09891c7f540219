"""Adversarial attention: it is far from the model's, and the predictions stay."""

import math

import pytest
import torch
from einops import reduce
from torch.testing import assert_close

from tests.architectures import OURS, of_timm
from vit import VisionTransformer
from vit.capture.attention import capture_attention, run_intercepted
from vit.explain.evaluation.adversarial import adversarial_attention, jensen_shannon
from vit.explain.maps import METHODS, Subject

STEPS = 100
FEW = slice(0, 5)  # images


@pytest.fixture(scope="module")
def found(model, images):
    return adversarial_attention(model, images[FEW], steps=STEPS)


def probabilities(model, images, result):
    attentions = dict(zip(result.layers, result.after, strict=True))
    return run_intercepted(model, images, lambda layer, attn: attentions.get(layer, attn)).softmax(dim=-1)


@torch.no_grad()
@pytest.mark.parametrize("layers", [None, [0], [1]])
def test_the_predictions_stay_within_the_tolerance_with_the_attention_that_is_returned(model, images, layers):
    result = adversarial_attention(model, images[FEW], layers, steps=STEPS)
    before, after = model(images[FEW]).softmax(dim=-1), probabilities(model, images[FEW], result)
    assert_close(result.probabilities_before, before)
    assert_close(result.probabilities_after, after)
    moved = (after - before).abs().sum(dim=-1) / 2
    assert_close(result.total_variation, moved, rtol=0, atol=1e-6)
    assert (moved <= 0.01 + 1e-6).all()
    assert result.divergence.mean() > 0.2
    assert result.layers == (layers or [0, 1])


def test_the_attention_before_is_that_of_the_model_and_after_it_sums_to_one(found, model, images):
    for before, after, attn in zip(found.before, found.after, capture_attention(model, images[FEW]), strict=True):
        assert_close(before, attn.detach())
        assert_close(after.sum(dim=-1), torch.ones(5, 3, 16))
        assert after.min() >= 0
        assert not after.requires_grad


def test_the_divergence_counts_queries_as_they_reach_the_read_out(found):
    in_layers = [jensen_shannon(*pair).mean(dim=1) for pair in zip(found.before, found.after, strict=True)]
    last = in_layers[1][:, 0]  # the logits read the class token only
    reached = found.before[1].mean(dim=1)[:, 0] / 2  # half by attention, half by the skip connection
    reached[:, 0] += 1 / 2
    assert_close(found.divergence, ((in_layers[0] * reached).sum(dim=-1) + last) / 2)


def test_the_divergence_is_at_most_ln_2():
    one, other = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(dim=-1)
    middle = (one + other) / 2
    terms = [(x * (x / middle).log()).sum(dim=-1) for x in (one, other)]
    assert_close(jensen_shannon(one, other), sum(terms) / 2)
    apart = torch.eye(5, dtype=torch.float64)
    assert_close(jensen_shannon(apart[0], apart[1]), torch.tensor(math.log(2), dtype=torch.float64))


def test_attention_that_does_not_matter_can_be_anywhere(images):
    blind = VisionTransformer((6, 10), 2, embed_dim=12, depth=2, num_heads=3, num_classes=7, pool="mean").eval()
    with torch.no_grad():
        for block in blind.blocks:
            block.attn.proj.weight.zero_()
    result = adversarial_attention(blind, images[FEW], steps=STEPS)
    assert result.divergence.min() > 0.5  # even attention is 0.574 from attention to one key of 16
    assert result.total_variation.max() < 1e-6


def test_an_image_without_other_attention_keeps_that_of_the_model(model, images):
    result = adversarial_attention(model, images[FEW], steps=1)  # the first try is too far
    assert result.divergence.tolist() == [0] * 5
    assert all(torch.equal(*pair) for pair in zip(result.before, result.after, strict=True))


def test_the_same_seed_finds_the_same_in_any_batch(model, images):
    alone = adversarial_attention(model, images[3:4], steps=3, seed=1)
    together = adversarial_attention(model, images[FEW], steps=3, seed=1)
    assert_close(alone.divergence, together.divergence[3:4])


def test_the_model_is_unchanged_and_has_no_gradients(found, model):
    assert all(parameter.grad is None for parameter in model.parameters())


def test_it_works_within_inference_mode(model, images):
    with torch.inference_mode():
        assert (adversarial_attention(model, images[FEW], steps=3).total_variation <= 0.01).all()


def test_keys_of_weight_zero_stay_at_zero(images):
    local = VisionTransformer(**OURS | {"attention": "neighborhood", "attention_kwargs": {"kernel": 3}}).eval()
    result = adversarial_attention(local, images[FEW], steps=STEPS)
    assert result.divergence.mean() > 0.2
    for before, after in zip(result.before, result.after, strict=True):
        assert (before == 0).any()
        assert (after[before == 0] == 0).all()


def test_attention_pooling_is_a_layer_of_one_query(images):
    pooled = of_timm(global_pool="map", class_token=False)().eval()
    result = adversarial_attention(pooled, images[FEW], steps=STEPS)
    assert result.layers == [0, 1, 2, 3]
    assert result.after[3].shape[2] == 1
    assert result.divergence.min() > 0.1
    assert [maps.shape for maps in result.maps()] == [(5, 3, 5)] * 2


@pytest.mark.parametrize("attention", ["talking", "differential"])
def test_weights_that_are_no_distribution_are_refused(images, attention):
    torch.manual_seed(0)
    model = VisionTransformer(**OURS | {"attention": attention}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    with pytest.raises(ValueError, match=r"the attention of layer 0 is no distribution \(its smallest weight is -"):
        adversarial_attention(model, images[FEW])


def test_layers_that_the_model_does_not_have_are_named(model, images):
    with pytest.raises(ValueError, match=r"layers \(\[2\]\) must be some of 2 layers, from 0 to 1"):
        adversarial_attention(model, images[FEW], [2])


def test_the_maps_are_the_rollout_of_several_layers_and_the_attention_of_one(found, model, images):
    subject = Subject(model, images[FEW])
    assert_close(found.maps()[0], METHODS["rollout"](subject))
    single = adversarial_attention(model, images[FEW], [1], steps=3)
    assert_close(single.maps()[0], METHODS["attention"](subject), rtol=0, atol=1e-6)
    assert_close(single.maps()[1], reduce(single.after[0], "b h n m -> b n m", "mean")[:, 0, 1:].view(5, 3, 5))


def test_a_model_of_one_logit_is_refused(images):
    model = VisionTransformer(**OURS | {"num_classes": 1}).eval()
    with pytest.raises(ValueError, match="has one logit only, whose probability by softmax is always 1"):
        adversarial_attention(model, images[:2], steps=1)
