"""Gradients that follow values through ``no_grad``, while parameters alone start no graph."""

import pytest
import torch
from torch import nn

from vit.capture.experiments.graph import FollowValues


@pytest.fixture
def parameter():
    return nn.Parameter(torch.ones(1, 4))


@torch.no_grad()
@pytest.mark.parametrize(
    "of", [lambda p: p, lambda p: p.reshape(4), lambda p: p.expand(3, 4), lambda p: p[:, :2], lambda p: p.mT]
)
def test_parameters_and_their_views_start_no_graph(of, parameter):
    with FollowValues():
        view = of(parameter)
        assert (2 * view).grad_fn is None


@torch.no_grad()
def test_a_view_of_a_parameter_may_be_added_in_place(parameter):
    with FollowValues():
        tokens = torch.zeros(3, 2, 2).flatten(1)
        tokens.add_(parameter.reshape(1, 4))
    assert torch.equal(tokens, torch.ones(3, 4))


@torch.no_grad()
def test_values_are_followed_through_detach_and_no_grad(parameter):
    value = torch.ones(4, requires_grad=True)
    with FollowValues():
        result = ((value * 3).detach() + parameter.reshape(4)).sum()
    (slope,) = torch.autograd.grad(result, value)
    assert torch.equal(slope, torch.full((4,), 3.0))
