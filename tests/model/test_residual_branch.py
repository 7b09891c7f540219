"""LayerScale and DropPath, against values computed by hand."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vit.model.residual_branch import DropPath, LayerScale


def test_layer_scale_is_a_learned_factor_per_channel():
    scale = LayerScale(3, 1e-4)
    assert_close(scale.gamma, nn.Parameter(torch.full((3,), 1e-4)), rtol=0, atol=0)
    with torch.no_grad():
        scale.gamma.copy_(torch.tensor([2.0, 3.0, 5.0]))
    assert scale(torch.tensor([[[1.0, 10.0, 100.0]]])).tolist() == [[[2.0, 30.0, 500.0]]]


@pytest.mark.parametrize(("probability", "training"), [(0.5, False), (0.0, True)])
def test_drop_path_is_the_identity_in_eval_mode_and_at_probability_zero(probability, training):
    tokens = torch.randn(2, 3, 5)
    assert DropPath(probability).train(training)(tokens) is tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_drop_path_zeroes_or_scales_each_image_and_preserves_the_mean(dtype):
    torch.manual_seed(0)
    factors = DropPath(0.25)(torch.ones(10_007, 3, 5, dtype=dtype))
    assert factors.dtype == dtype
    assert_close(factors, factors[:, :1, :1].expand_as(factors), rtol=0, atol=0)
    assert factors.unique().tolist() == [0.0, torch.tensor(4 / 3, dtype=dtype).item()]
    # The standard error of the mean of 10,007 factors is 0.0058.
    assert factors[:, 0, 0].double().mean().item() == pytest.approx(1.0, abs=0.025)


def test_drop_path_may_be_changed_in_the_course_of_a_training():
    drop, tokens = DropPath(0.0), torch.ones(64, 3, 5)
    drop.probability = 0.75
    assert drop(tokens).unique().tolist() == [0.0, 4.0]
    drop.probability = 0.0
    assert drop(tokens) is tokens
    with pytest.raises(ValueError, match=r"drop_path \(1.5\)"):
        drop.probability = 1.5


def test_drop_path_shows_its_probability():
    assert repr(DropPath(0.1)) == "DropPath(probability=0.1)"
