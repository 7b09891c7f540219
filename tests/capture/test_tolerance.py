"""How far rounding may move numbers, by their type."""

import pytest
import torch

from vit.capture.tolerance import tolerance


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float64, 1e-4), (torch.float32, 1e-4), (torch.float16, 0.05)])
def test_only_half_precision_has_the_wider_tolerance(dtype, expected):
    assert tolerance(torch.nn.Identity(), torch.ones(1, dtype=dtype), 1e-4) == expected
