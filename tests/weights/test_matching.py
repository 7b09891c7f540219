"""The tensors of a file are compared with those of a model."""

import pytest
import torch
from torch import nn

from vit.weights import check_same_tensors
from vit.weights.matching import check_numbers


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
        check_numbers({"bias": torch.zeros(5), "scale": weight}, "here")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool, torch.int64, torch.float8_e4m3fn])
def test_other_kinds_of_numbers_are_refused(dtype):
    with pytest.raises(ValueError, match=r"^here: scale is .*: convert it to float16, bfloat16, float32, float64$"):
        check_numbers({"scale": torch.ones(3).to(dtype)}, "here")


def test_finite_numbers_of_every_precision_pass():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        check_numbers({"weight": torch.ones(3, dtype=dtype)}, "here")
