"""Softmax attention: its logits are scaled or plain products."""

import pytest
import torch
from torch.testing import assert_close

from vit.attention import scaled_dot_product_attention
from vit.attention.mechanisms import SoftmaxAttention

B, H, N, M, D = 2, 3, 5, 7, 11


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("scaled", "scale"), [(True, None), (False, 1.0)])
def test_logits_are_the_products_of_queries_and_keys_scaled_or_plain(dtype, scaled, scale):
    q, k, v = (torch.randn(B, H, n, D, dtype=dtype) for n in (N, M, M))
    expected, weights = scaled_dot_product_attention(q, k, v, scale=scale)
    attention = SoftmaxAttention(scaled)
    tolerance = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 0.05, "atol": 0.05}
    assert_close(attention(q, k, v), expected, **tolerance)
    assert_close(attention.weights(q, k), weights, **tolerance)


def test_whether_logits_are_scaled_is_true_or_false():
    with pytest.raises(ValueError, match=r"scaled \('no'\) must be True or False"):
        SoftmaxAttention(scaled="no")
