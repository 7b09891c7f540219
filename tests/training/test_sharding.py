"""The state of an optimiser between the numbers of one process and the names of several."""

import copy

import pytest
import torch
from torch import nn

from vit.training.sharding import named
from vit.weights.distributed import numbered


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def trained(model: nn.Module) -> torch.optim.Optimizer:
    """An optimiser whose groups do not follow the model: matrices first, the last layer before the first one."""
    first, last = model
    groups = [{"params": [last.weight, first.weight], "lr": 0.1}, {"params": [first.bias, last.bias], "lr": 0.2}]
    optimizer = torch.optim.AdamW(groups)
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, number + 1.0)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "1.weight", "1.bias"])
def test_the_state_of_a_parameter_is_found_by_its_name(model, name):
    optimizer = trained(model)
    parameter = model.get_parameter(name)
    found = named(optimizer.state_dict(), optimizer, model)["state"][name]["exp_avg"]
    assert torch.equal(found, optimizer.state[parameter]["exp_avg"])


def test_groups_keep_their_order_and_their_options(model):
    optimizer = trained(model)
    groups = named(optimizer.state_dict(), optimizer, model)["param_groups"]
    assert [(group["params"], group["lr"]) for group in groups] == [
        (["1.weight", "0.weight"], 0.1),
        (["0.bias", "1.bias"], 0.2),
    ]


def test_names_become_the_numbers_of_one_process_again(model):
    optimizer = trained(model)
    state = optimizer.state_dict()
    torch.testing.assert_close(numbered(named(copy.deepcopy(state), optimizer, model)), state, rtol=0, atol=0)


def test_a_compiled_layer_has_the_names_that_it_had_before(model):
    optimizer = trained(model)
    model[1] = torch.compile(model[1])
    assert set(named(optimizer.state_dict(), optimizer, model)["state"]) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_other_groups_are_a_line(model):
    saved = trained(model).state_dict()
    other = torch.optim.AdamW(model.parameters())
    with pytest.raises(ValueError, match=r"has groups of \[2, 2\] parameters, this one of \[4\]: train on with the"):
        named(saved, other, model)
