"""The referee of contributions: effects against a model run with hooks, and correlations by hand."""

import pytest
import torch
from scipy.stats import spearmanr
from torch.testing import assert_close

from tests.architectures import EXACT, IMAGES, TARGET
from vit.capture.attention_output import capture_outputs
from vit.explain import capture_attention, contributions
from vit.explain.evaluation.ablation import ablation_agreement, ablation_effect, direct_effect
from vit.explain.maps.subject import Subject
from vit.explain.readout import linear_readout


def effect_by_hooks(model, images, target, place):
    """Replace what a head carries from a token by its mean, in the input of the output projection."""
    layer, head, token = place
    block = model.blocks[layer]
    tokens = model.embed(images)
    for earlier in model.blocks[:layer]:
        tokens = earlier(tokens)
    q, k, v = block.attn.qkv(block.norm1(tokens)).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
    carried = (q @ k.mT / 2).softmax(dim=-1)[:, head, :, token, None] * v[:, head, token, None]

    def replace(_, args):
        mixed = args[0].clone()
        mixed[..., 4 * head : 4 * head + 4] += carried.mean(dim=0) - carried
        return (mixed,)

    handle = block.attn.proj.register_forward_pre_hook(replace)
    ablated = model(images)
    handle.remove()
    return (model(images) - ablated).gather(1, target[:, None])[:, 0]


@pytest.mark.parametrize("place", [(0, 0, 0), (1, 2, 5), (2, 1, 15)])
@torch.no_grad()
def test_the_effect_is_that_of_the_mean_in_the_output_of_the_head(place, random_vit):
    model = random_vit()
    subject = Subject(model, IMAGES, TARGET)
    outputs = capture_outputs(model, IMAGES, subject.anatomy.calls)
    expected = effect_by_hooks(model, IMAGES, TARGET, place)
    assert expected.abs().min() > 0
    assert_close(ablation_effect(subject, outputs, place), expected, **EXACT)


def test_in_the_last_layer_without_norm_and_mlp_effects_are_differences_of_terms(random_vit):
    model = random_vit(depth=1)
    with torch.no_grad():
        for linear in (model.blocks[0].mlp.fc1, model.blocks[0].mlp.fc2):
            linear.weight.zero_()
        model.norm = torch.nn.Identity()
    subject = Subject(model, IMAGES, 2)
    outputs = capture_outputs(model, IMAGES, subject.anatomy.calls)
    terms = contributions(model, IMAGES, 2).heads[:, 0, 1, 6]
    assert_close(ablation_effect(subject, outputs, (0, 1, 6)), terms - terms.mean(), **EXACT)
    weights = linear_readout(subject, subject.anatomy.parts.last).weights
    assert_close(direct_effect(outputs, weights, (0, 1, 6)), terms - terms.mean(), **EXACT)


@torch.no_grad()
def test_the_table_holds_rank_correlations_with_the_effects_and_with_their_sizes(random_vit):
    model = random_vit()
    table = ablation_agreement(model, IMAGES, TARGET, ablations=12, seed=3)
    drawn = torch.randperm(3 * 3 * 16, generator=torch.Generator().manual_seed(3))[:12]
    places = [(int(n) // 48, int(n) // 16 % 3, int(n) % 16) for n in drawn]
    effects = torch.stack([effect_by_hooks(model, IMAGES, TARGET, place) for place in places], dim=1)
    attentions = capture_attention(model, IMAGES)
    looks = torch.stack([attentions[i][:, j, 0, k] for i, j, k in places], dim=1)
    row = table.row(prediction="attention")
    expected = [spearmanr(looks[b], effects[b]).statistic for b in range(3)]
    assert row["effect"].mean == pytest.approx(sum(expected) / 3)
    expected = [spearmanr(looks[b], effects[b].abs()).statistic for b in range(3)]
    assert row["size of the effect"].mean == pytest.approx(sum(expected) / 3)
    means = {row["prediction"]: row["effect"].mean for row in table.rows}
    assert means["difference"] == pytest.approx(means["contributions"] - means["attention"])
    assert "3 images, 12 ablations" in str(table)


@pytest.fixture(scope="module")
def packaged():
    """Sixteen images of noise smoothed over patches, and the packaged model."""
    import vit

    coarse = torch.randn(16, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    return vit.load("cifar10"), torch.nn.functional.interpolate(coarse, (32, 32), mode="bilinear")


def test_terms_predict_effects_better_than_attention_does_in_a_trained_model(packaged):
    table = ablation_agreement(*packaged, ablations=48)
    assert table.row(prediction="difference")["effect"].low > 0


def test_one_image_and_two_ablations_are_refused(random_vit):
    with pytest.raises(ValueError, match="1 images and 64 ablations: the mean of a head needs at least two"):
        ablation_agreement(random_vit(), IMAGES[:1])
    with pytest.raises(ValueError, match="3 images and 2 ablations"):
        ablation_agreement(random_vit(), IMAGES, ablations=2)


def test_a_head_whose_values_do_not_span_its_channels_is_refused(random_vit):
    model = random_vit(depth=1, image_size=(2, 4), class_token=False, pool="mean")  # two tokens, four channels
    images = torch.randn(3, 3, 2, 4, dtype=torch.float64)
    subject = Subject(model, images, 1)
    with pytest.raises(ValueError, match="the values of head 1 in layer 0 have fewer dimensions than channels"):
        ablation_effect(subject, capture_outputs(model, images, subject.anatomy.calls), (0, 1, 0))
