"""Queries, keys and values of prime sizes, in float64."""

import pytest
import torch

B, H, N, M, D, E = 2, 3, 5, 7, 11, 13
EXACT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture
def qkv():
    q, k, v = torch.randn(B, H, N, D), torch.randn(B, H, M, D), torch.randn(B, H, M, E)
    return q.double(), k.double(), v.double()
