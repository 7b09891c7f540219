"""The tensors of a file are compared with those of a model."""

import pytest
import torch
from torch import nn

from vit.weights import check_same_tensors
from vit.weights.matching import check_finite


def test_tensors_that_differ_are_missing_unwanted_or_of_another_shape():
    model = nn.Linear(2, 3)
    check_same_tensors(model, model.state_dict(), "here", "go")
    check_same_tensors(model, {"bias": torch.zeros(3), "weight": torch.zeros(3, 2)}, "here", "go")
    state = {"weight": torch.zeros(5, 2), "scale": torch.zeros(1)}
    message = (
        r"here comes from another architecture, 3 tensors differ: "
        r"bias is missing; scale is unknown; weight is \(5, 2\) and not \(3, 2\): go elsewhere$"
    )
    with pytest.raises(ValueError, match=message):
        check_same_tensors(model, state, "here", "go elsewhere")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_none_is_named_by_its_tensor(value):
    weight = torch.zeros(2, 3)
    weight[1, 2] = value
    with pytest.raises(ValueError, match=r"^here is of no use: 1 of the 6 numbers of scale are NaN or infinite"):
        check_finite({"bias": torch.zeros(5), "scale": weight}, "here")


def test_finite_numbers_of_every_precision_pass():
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int64):
        check_finite({"weight": torch.ones(3, dtype=dtype)}, "here")
