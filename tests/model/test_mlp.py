"""The MLPs of a block, against values computed by hand and against timm's."""

import pytest
import torch
from timm.layers import SwiGLUPacked
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT, randomised
from vit.model.mlp import ACTIVATIONS, Mlp, SwiGLU, make_mlp


def test_an_mlp_is_two_linear_layers_with_an_exact_gelu_between():
    mlp = randomised(Mlp(5, 11))
    tokens = torch.randn(2, 3, 5, dtype=torch.float64)
    hidden = tokens @ mlp.fc1.weight.T + mlp.fc1.bias
    hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
    assert_close(mlp(tokens), hidden @ mlp.fc2.weight.T + mlp.fc2.bias, **EXACT)


def test_an_mlp_drops_channels_after_each_layer_while_training():
    torch.manual_seed(0)
    mlp = Mlp(7, 7, dropout=0.5)
    nn.init.zeros_(mlp.fc1.weight)
    nn.init.constant_(mlp.fc1.bias, 20.0)  # GELU(20) = 20
    nn.init.eye_(mlp.fc2.weight)
    nn.init.ones_(mlp.fc2.bias)
    tokens = torch.randn(2, 11, 7)
    # Hidden channels are 0 or 40, then 1 is added, then they are doubled or dropped.
    assert mlp(tokens).unique().tolist() == [0.0, 2.0, 82.0]
    assert mlp.eval()(tokens).unique().tolist() == [21.0]


def test_an_mlp_has_the_activation_of_its_name():
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)
    expected = {
        "gelu": nn.functional.gelu(x),
        "gelu_tanh": nn.functional.gelu(x, approximate="tanh"),
        "quick_gelu": x / (1 + (-1.702 * x).exp()),
    }
    assert expected.keys() == ACTIVATIONS.keys()
    for name, values in expected.items():
        assert_close(Mlp(5, 11, activation=name).act(x), values, **EXACT)
    assert isinstance(make_mlp("swiglu", 5, 11, 0.0), SwiGLU)
    with pytest.raises(ValueError, match="unknown mlp 'relu': choose 'gelu', 'gelu_tanh', 'quick_gelu' or 'swiglu'"):
        make_mlp("relu", 5, 11, 0.0)
    with pytest.raises(ValueError, match="unknown activation 'swiglu': choose 'gelu', 'gelu_tanh' or 'quick_gelu'"):
        Mlp(5, 11, activation="swiglu")


def test_swiglu_is_that_of_timm_with_the_same_weights():
    theirs, ours = randomised(SwiGLUPacked(5, 22)), SwiGLU(5, 11).double()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    tokens = torch.randn(2, 3, 5, dtype=torch.float64)
    assert_close(ours(tokens), theirs(tokens), **EXACT)


def test_swiglu_drops_channels_after_each_layer_while_training():
    torch.manual_seed(0)
    mlp = SwiGLU(3, 7, dropout=0.5)
    nn.init.zeros_(mlp.fc1.weight)
    nn.init.constant_(mlp.fc1.bias, 40.0)  # silu(40) = 40
    nn.init.constant_(mlp.fc2.weight, 1 / 1600)
    nn.init.zeros_(mlp.fc2.bias)
    values = mlp(torch.randn(2, 101, 3)).unique()
    assert values.min() == 0
    assert set((values / 4).round(decimals=3).tolist()) <= set(range(8))  # 0 to 7 kept channels of 2, then twice that
    assert_close(mlp.eval()(torch.randn(1, 1, 3)), torch.full((1, 1, 3), 7.0))
