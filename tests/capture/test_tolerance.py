"""How far rounding may move numbers, by their type."""

import pytest
import torch
from torch.testing import assert_close

from vit.capture.tolerance import HALF_TOLERANCE, allowed_in_logits, are_apart, tolerance


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float64, 1e-4), (torch.float32, 1e-4), (torch.float16, 0.05)])
def test_only_half_precision_has_the_wider_tolerance(dtype, expected):
    assert tolerance(torch.nn.Identity(), torch.ones(1, dtype=dtype), 1e-4) == expected


class OwnParameter(torch.nn.Parameter):
    """A parameter of an own type."""


class Named(torch.nn.Linear):
    """A layer of a stranger, whose module has a misleading name."""

    __module__ = "quantized_vits"


class Quantised(torch.nn.Linear):
    """A layer of the module of torch's quantised ones, which warn that they will move."""

    __module__ = "torch.ao.nn.quantized.dynamic.modules.linear"


def test_only_quantised_layers_have_the_wider_tolerance():
    own = torch.nn.Linear(2, 2)
    own.weight = OwnParameter(own.weight.detach())
    found = [tolerance(model, torch.ones(1), 1e-4) for model in (own, Named(2, 2), Quantised(2, 2))]
    assert found == [1e-4, 1e-4, HALF_TOLERANCE]


@pytest.mark.parametrize(
    ("usual", "largest"),
    [
        ([1.0, 0.0, 0.5], [30.0, 100.0, 30.0]),
        ([0.0, 0.0, 0.0], [100.0, 100.0, 100.0]),
        ([60.0, 0.0, 0.5], [60.0, 100.0, 30.0]),
    ],
    ids=["moved", "never moved", "moved by more than their size"],
)
def test_half_precision_moves_a_logit_by_a_share_of_the_largest_that_images_move(usual, largest):
    logits = torch.tensor([[-2.0, 100.0, 30.0], [1.0, 99.0, 3.0]]).half()
    allowed = allowed_in_logits(torch.nn.Identity(), logits, torch.tensor(usual), 1e-4)
    assert_close(allowed.float(), HALF_TOLERANCE * torch.tensor(largest))


def test_full_precision_moves_a_logit_by_a_share_of_what_images_move():
    logits = torch.tensor([2.0, 100.0, 30.0]).double()
    allowed = allowed_in_logits(torch.nn.Identity(), logits, torch.tensor([1.0, 0.0, 0.5]).double(), 1e-4)
    assert_close(allowed[[0, 2]], torch.tensor([1e-4, 0.5e-4]).double())
    assert allowed[1] < 1e-9


def test_classes_masked_by_infinity_are_equal_and_nan_and_other_infinities_are_not():
    one = torch.tensor([1.0, 1.0, -torch.inf, torch.inf, torch.nan])
    other = torch.tensor([1.05, 1.2, -torch.inf, -torch.inf, torch.nan])
    assert are_apart(one, other, torch.full((5,), 0.1)).tolist() == [False, True, False, True, True]
