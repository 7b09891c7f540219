"""Attention flow, against networkx and flows found by hand."""

import networkx
import pytest
import torch
from torch.testing import assert_close

from tests.architectures import TWO_HEADS, captured
from vit.explain import attention_flow


def flow_by_networkx(layers, token, to):
    """The largest flow from an output token to an input token through (N, N) matrices, first layer first."""
    graph = networkx.DiGraph()
    depth = len(layers)
    for level, pipes in enumerate(layers):  # level 0 is the input
        for n, row in enumerate(pipes.tolist()):
            for m, capacity in enumerate(row):
                graph.add_edge((level + 1, n), (level, m), capacity=capacity)
    return networkx.maximum_flow_value(graph, (depth, token), (0, to))


@pytest.mark.parametrize("residual", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("token", [0, 2])
def test_flow_is_that_of_networkx(residual, token):
    generator = torch.Generator().manual_seed(0)
    attentions = [torch.rand(2, 3, 5, 5, generator=generator).double().softmax(dim=-1) for _ in range(3)]
    found = attention_flow(attentions, token, residual)
    for image in range(2):
        pipes = [
            (1 - residual) * attn[image].mean(dim=0) + residual * torch.eye(5, dtype=torch.float64)
            for attn in attentions
        ]
        expected = [flow_by_networkx(pipes, token, to) for to in range(5)]
        assert_close(found[image], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


def test_the_flow_through_one_layer_is_its_row():
    attn = captured("timm")[0].detach()
    assert_close(attention_flow([attn], residual=0.0), attn.mean(dim=1)[:, 0], rtol=0, atol=1e-6)


def test_flow_by_hand():
    # Means of the heads, last layer: row 0 is (.25 0 .75). First layer: (.5 .5 0), (.25 .5 .25), (.25 .25 .5).
    # To token 0: .25 by 0, limited by the pipe from the output, and .25 by 2, limited by the pipe below.
    first, last = TWO_HEADS[0][None], TWO_HEADS[1][None]
    means = (first.mean(dim=1)[0], last.mean(dim=1)[0])
    expected = [sum(min(means[1][0, k], means[0][k, to]) for k in range(3)) for to in range(3)]
    assert_close(attention_flow([first, last], residual=0.0), torch.tensor([expected]), rtol=0, atol=1e-6)


def test_negative_weights_carry_nothing():
    attn = torch.tensor([[[[1.5, -0.5], [0.0, 1.0]]]])
    with pytest.warns(UserWarning, match="attention has negative weights"):
        found = attention_flow([attn], residual=0.0)
    assert_close(found, torch.tensor([[1.0, 0.0]]), rtol=0, atol=1e-6)


def test_tokens_and_pooling_are_checked():
    attentions = list(captured("timm"))
    with pytest.raises(ValueError, match=r"token \(16\) must be one of 16 tokens, from 0 to 15"):
        attention_flow(attentions, token=16)
    pooled = list(captured("timm, map"))
    with pytest.raises(ValueError, match="an attention with one query, as of attention pooling, has no flow"):
        attention_flow(pooled)


def test_a_residual_out_of_range_and_weights_that_are_no_numbers_are_refused():
    attn = torch.full((1, 1, 2, 2), 0.5)
    with pytest.raises(ValueError, match="residual"):
        attention_flow([attn], residual=1.5)
    with pytest.raises(ValueError, match="NaN"):
        attention_flow([attn * torch.nan])
