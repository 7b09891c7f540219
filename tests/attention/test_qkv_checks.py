"""Queries, keys and values that do not fit together are refused."""

import pytest
import torch

from vit.attention import scaled_dot_product_attention


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        ((2, 3, 5), (2, 3, 5), (2, 3, 5), "3, 3 and 3 axes: attention takes 4"),
        ((1, 1, 5, 4), (1, 1, 5, 3), (1, 1, 5, 3), "queries have 4 channels and keys 3"),
        ((1, 1, 5, 4), (1, 1, 6, 4), (1, 1, 7, 4), "there are 6 keys and 7 values"),
        (
            (1, 4, 5, 4),
            (1, 2, 5, 4),
            (1, 2, 5, 4),
            r"q \(1, 4, 5, 4\), k \(1, 2, 5, 4\).* batch and heads must be the same",
        ),
        ((2, 1, 5, 4), (3, 1, 5, 4), (3, 1, 5, 4), "batch and heads must be the same"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_both(q, k, v, message):
    with pytest.raises(ValueError, match=message):
        scaled_dot_product_attention(torch.zeros(q), torch.zeros(k), torch.zeros(v))


def test_dtypes_and_devices_that_differ_are_refused_with_both():
    x = torch.zeros(1, 1, 2, 3)
    with pytest.raises(ValueError, match=r"q is torch.float32, k torch.float64 .*\.to\(dtype\)"):
        scaled_dot_product_attention(x, x.double(), x)
    with pytest.raises(ValueError, match=r"q is on cpu, k on meta and v on cpu.*\.to\(device\)"):
        scaled_dot_product_attention(x, x.to("meta"), x)
