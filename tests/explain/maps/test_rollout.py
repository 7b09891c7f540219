"""Attention rollout, against products worked out by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.architectures import EXACT, TWO_HEADS
from vit.explain import attention_rollout, explain
from vit.explain.maps.rollout import roll, with_residual

FIRST, SECOND = TWO_HEADS[:, None]


def rolled(**kwargs):
    return attention_rollout([FIRST, SECOND], **kwargs)[0]


def test_two_layers_are_multiplied_as_worked_out_by_hand():
    # Mean of the heads, half of it and half the identity:
    #   first   .75  .25  0       second  .625 0    .375
    #           .125 .75  .125            .25  .75  0
    #           .125 .125 .75             0    .25  .75
    # and the second stands on the left: its first row gives .625 (.75, .25, 0) + .375 (.125, .125, .75).
    expected = [[0.515625, 0.203125, 0.28125], [0.28125, 0.625, 0.09375], [0.125, 0.28125, 0.59375]]
    assert_close(rolled(), torch.tensor(expected))


def test_without_residual_the_attentions_themselves_are_multiplied():
    # .5 .5 0; .25 .5 .25; .25 .25 .5, and from the left .25 0 .75; .5 .5 0; 0 .5 .5.
    expected = [[0.3125, 0.3125, 0.375], [0.375, 0.5, 0.125], [0.25, 0.375, 0.375]]
    assert_close(rolled(residual=0.0), torch.tensor(expected))


def test_the_residual_is_the_share_of_the_identity():
    # One quarter attention: the second is .8125 0 .1875; .125 .875 0; 0 .125 .875.
    expected = [[0.8125, 0.0, 0.1875], [0.125, 0.875, 0.0], [0.0, 0.125, 0.875]]
    assert_close(rolled(residual=0.75, start_layer=1), torch.tensor(expected))
    assert_close(rolled(residual=1.0), torch.eye(3))


def test_the_largest_weight_of_the_heads_is_divided_by_the_sum_of_its_row():
    #   first   1   1   0      half, with half the identity, and rows that sum to one:  2/3 1/3 0
    #           .5  .5  .5                                                              .2  .6  .2
    #           .5  .25 .75                                                             .2  .1  .7
    #   second  .5  0   1                                                               .6  0   .4
    #           1   1   0                                                               1/3 2/3 0
    #           0   1   1                                                               0   1/3 2/3
    expected = [[0.48, 0.24, 0.28], [16 / 45, 23 / 45, 6 / 45], [3 / 15, 4 / 15, 8 / 15]]
    assert_close(rolled(head_fusion="max"), torch.tensor(expected))


def test_the_smallest_weight_of_the_heads_is_divided_by_the_sum_of_its_row():
    #   first   0   0   0      half, with half the identity, and rows that sum to one:  1   0   0
    #           0   .5  0                                                               0   1   0
    #           0   .25 .25                                                             0   1/6 5/6
    #   second  0   0   .5, and the rest is 0                                           2/3 0   1/3
    expected = [[2 / 3, 1 / 18, 5 / 18], [0, 1, 0], [0, 1 / 6, 5 / 6]]
    assert_close(rolled(head_fusion="min"), torch.tensor(expected))


def test_layers_before_the_start_do_not_count():
    assert_close(rolled(start_layer=1), torch.tensor([[0.625, 0, 0.375], [0.25, 0.75, 0], [0, 0.25, 0.75]]))


def test_the_smallest_weights_of_each_image_are_discarded():
    one = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.65, 0.25], [0.05, 0.35, 0.6]])
    other = torch.tensor([[0.9, 0.06, 0.04], [0.15, 0.45, 0.4], [0.02, 0.33, 0.65]])
    # .4 of nine is 3: of the one .05, .1 and .2 go; of the other .02, .04 and .06. No token is spared.
    expected = [
        [[5 / 6, 1 / 6, 0], [0, 0.825 / 0.95, 0.125 / 0.95], [0, 0.175 / 0.975, 0.8 / 0.975]],
        [[1, 0, 0], [0.075, 0.725, 0.2], [0, 0.165 / 0.99, 0.825 / 0.99]],
    ]
    found = attention_rollout([torch.stack([one, other])[:, None]], discard_ratio=0.4)
    assert_close(found, torch.tensor(expected))


@pytest.mark.parametrize(("ratio", "count"), [(0.28, 28), (0.29, 29), (0.57, 57), (0.295, 29)])
def test_the_number_of_discarded_weights_is_not_rounded_down_by_accident(ratio, count):
    attn = torch.rand(1, 1, 10, 10, dtype=torch.float64).softmax(dim=-1)
    found = attention_rollout([attn], discard_ratio=ratio, residual=0.0)
    assert (found == 0).sum() == count


def test_a_token_whose_weights_are_all_discarded_keeps_its_own_value():
    attn = torch.tensor([[[[0.5, 0.3, 0.2], [0.05, 0.1, 0.15], [0.25, 0.35, 0.4]]]])
    found = attention_rollout([attn], discard_ratio=0.34, residual=0.0)
    assert_close(found[0], torch.tensor([[0.5, 0.3, 0.2], [0, 1, 0], [0.25, 0.35, 0.4]]))


def test_negative_means_of_the_heads_count_as_zero_with_a_warning():
    # The mean is .5 -.05; .1 .5: a negative share of a token is no share, and heads may outweigh each other before.
    attn = torch.tensor([[[[0.5, -0.3], [-0.2, 1.0]], [[0.5, 0.2], [0.4, 0.0]]]])
    with pytest.warns(UserWarning, match="attention has negative weights .* which count as zero"):
        found = attention_rollout([attn], residual=0.0)
    assert_close(found[0], torch.tensor([[1.0, 0.0], [1 / 6, 5 / 6]]))


def test_a_last_attention_of_one_query_is_multiplied_without_residual():
    pool = torch.tensor([[[[0.5, 0.25, 0.25]], [[0.0, 0.75, 0.25]]]])
    # (.25, .5, .25) of the product of the two layers.
    expected = [[0.25 * 0.515625 + 0.5 * 0.28125 + 0.25 * 0.125, 0.43359375, 0.2656250]]
    found = attention_rollout([FIRST, SECOND, pool])
    assert_close(found[0], torch.tensor(expected))
    # It is normalised after heads are joined: the largest are .5 .75 .25.
    largest = attention_rollout([FIRST, SECOND, pool], head_fusion="max")
    assert_close(largest[0], torch.tensor([[2.0, 3.0, 1.0]]) / 6 @ rolled(head_fusion="max"))
    # Where it leaves out the prefix, it counts from the last token.
    patches = attention_rollout([FIRST, SECOND, pool[..., 1:]], head_fusion="max")
    assert_close(patches[0], torch.tensor([[0.0, 0.75, 0.25]]) @ rolled(head_fusion="max"))


def test_half_precision_is_followed_in_float32_and_nothing_has_a_graph():
    attentions = [FIRST.bfloat16().requires_grad_(), SECOND.bfloat16()]
    found = attention_rollout(attentions)
    assert (found.dtype, found.requires_grad) == (torch.float32, False)
    assert_close(found[0], rolled())
    assert attention_rollout([FIRST.double()]).dtype == torch.float64


def stochastic(batch, heads, tokens, depth, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (3 * torch.randn(batch, heads, tokens, tokens, generator=generator, dtype=torch.float64)).softmax(dim=-1)
        for _ in range(depth)
    ]


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.tuples(*[st.sampled_from([1, 2, 3, 5, 7])] * 2, st.sampled_from([2, 3, 11]), st.integers(1, 5)),
    fusion=st.sampled_from(["mean", "max", "min"]),
    discard_ratio=st.floats(0, 0.99),
    residual=st.floats(0, 1, allow_subnormal=False),
)
def test_rows_always_sum_to_one(sizes, fusion, discard_ratio, residual):
    found = attention_rollout(stochastic(*sizes), fusion, discard_ratio, residual)
    assert found.shape == (sizes[0], sizes[2], sizes[2])
    assert (found >= 0).all()
    assert_close(found.sum(dim=-1), torch.ones_like(found[..., 0]))


@pytest.mark.parametrize("options", [{}, {"head_fusion": "max", "discard_ratio": 0.5, "residual": 0.3}], ids=str)
def test_images_of_a_batch_do_not_mix(options):
    attentions = stochastic(5, 3, 7, 4)
    alone = torch.cat([attention_rollout([attn[i : i + 1] for attn in attentions], **options) for i in range(5)])
    assert_close(attention_rollout(attentions, **options), alone, **EXACT)


def test_rolling_layer_by_layer_is_the_rollout_of_all():
    attentions, found = stochastic(2, 3, 7, 4), None
    for attn in attentions:
        found = roll(found, attn, "max", 0.3, 0.2)
    assert_close(found, attention_rollout(attentions, "max", 0.3, 0.2), **EXACT)


def test_the_order_of_layers_matters():
    attentions = stochastic(1, 3, 7, 4)
    assert not attention_rollout(attentions).allclose(attention_rollout(attentions[::-1]), atol=1e-2)


# The map of a model.


@pytest.mark.filterwarnings("ignore:attention has negative weights")
def test_the_map_is_the_readout_of_the_rollout(architecture, model, images, attentions):
    options = {"head_fusion": "max", "discard_ratio": 0.4, "residual": 0.2, "start_layer": 1}
    whole = attention_rollout(attentions, **options)
    readout = architecture.readout.to(whole)
    row = whole[:, 0] if architecture.pooled else torch.einsum("n,bnm->bm", readout, whole)
    patches = row[:, architecture.prefix :][:, : architecture.grid[0] * architecture.grid[1]]
    expected = patches.reshape(2, *architecture.grid)
    assert_close(explain(model, images, "rollout", **options), expected, **EXACT)


def test_the_map_of_a_fused_model_of_timm_is_that_of_the_weights_it_shows_unfused(architectures, model_of):
    images, unfused, seen = architectures["timm"].images(), model_of("timm, not fused"), []
    handles = [
        block.attn.attn_drop.register_forward_hook(lambda _, args, output: seen.append(output))
        for block in unfused.blocks
    ]
    unfused(images)
    for handle in handles:
        handle.remove()
    first, second, third = ((attn.mean(dim=1) + torch.eye(16, dtype=torch.float64)) / 2 for attn in seen)
    expected = (third @ second @ first)[:, 0, 1:].reshape(2, 3, 5)
    assert_close(explain(model_of("timm"), images, "rollout"), expected, **EXACT)


# Refusals.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_fusion": "sum"}, "unknown head_fusion 'sum': choose 'mean', 'max' or 'min'"),
        ({"discard_ratio": 1.0}, r"discard_ratio \(1.0\) must be at least 0 and less than 1: it is a share of weights"),
        ({"discard_ratio": -0.1}, r"discard_ratio \(-0.1\) must be at least 0 and less than 1"),
        ({"residual": 1.1}, r"residual \(1.1\) must be from 0 \(attention only\) to 1 \(no attention\)"),
        ({"residual": -0.1}, r"residual \(-0.1\) must be from 0"),
        ({"start_layer": 3}, r"start_layer \(3\) must be one of the 3 layers, from 0 to 2"),
        ({"start_layer": -1}, r"start_layer \(-1\) must be one of the 3 layers, from 0 to 2"),
    ],
)
def test_arguments_out_of_range_are_refused(options, message, random_vit):
    with pytest.raises(ValueError, match=message):
        attention_rollout(stochastic(1, 3, 5, 3), **options)
    with pytest.raises(ValueError, match=message):
        explain(random_vit(), torch.randn(1, 3, 6, 10).double(), "rollout", **options)


def test_no_attention_is_refused():
    with pytest.raises(ValueError, match="there is no attention: give that of at least one layer"):
        attention_rollout([])


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 4, 4)], r"the attention of layer 0 has shape \(2, 4, 4\): give \(images, heads, tokens, tokens\)"),
        ([(1, 2, 4, 4), (3, 2, 4, 4)], r"the attention of layer 1 has shape \(3, 2, 4, 4\).* 1 images and 4 tokens"),
        (
            [(1, 2, 4, 4), (1, 2, 1, 4), (1, 2, 4, 4)],
            r"the attention of layer 1 has shape \(1, 2, 1, 4\).* only a last",
        ),
    ],
    ids=str,
)
def test_what_is_no_attention_of_one_batch_is_refused(shapes, message):
    with pytest.raises(ValueError, match=message):
        attention_rollout([torch.rand(shape) for shape in shapes])


def test_weights_that_are_no_numbers_are_refused():
    attn = torch.full((1, 1, 2, 2), torch.nan)
    with pytest.raises(ValueError, match="the attention of layer 0 contains NaN or infinity"):
        attention_rollout([attn])


def test_a_row_of_nan_does_not_become_the_identity():
    mixing = torch.full((1, 2, 2), torch.nan)
    assert with_residual(mixing, 0.5).isnan().all()
