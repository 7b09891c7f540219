"""Gated attention, against softmax."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT
from vit.attention import MultiHeadAttention

B, N, H, D = 2, 5, 3, 7


def pair(**kwargs):
    """Gated and softmax attention with the same projections."""
    gated = MultiHeadAttention(H * D, H, mechanism="gated", **kwargs).double()
    plain = MultiHeadAttention(H * D, H, **kwargs).double()
    plain.load_state_dict({name: x for name, x in gated.state_dict().items() if "mechanism" not in name})
    return gated, plain


@pytest.mark.parametrize(("bias", "share"), [(100.0, 1.0), (0.0, 0.5), (-100.0, 0.0)])
def test_a_constant_gate_scales_all_outputs_alike(bias, share):
    gated, plain = pair()
    nn.init.zeros_(gated.mechanism.gate.weight)
    nn.init.constant_(gated.mechanism.gate.bias, bias)
    nn.init.zeros_(plain.proj.bias)
    nn.init.zeros_(gated.proj.bias)
    x = torch.randn(B, N, H * D, dtype=torch.float64)
    assert_close(gated(x), share * plain(x), **EXACT)
    assert_close(gated.weights(x), plain.weights(x), rtol=0, atol=0)


@pytest.mark.parametrize("kwargs", [{}, {"value_dim": H * 2, "key_dim": H * 5}])
def test_each_channel_of_each_head_has_a_gate_computed_from_the_token_of_the_query(kwargs):
    gated, _ = pair(**kwargs)
    x, context = torch.randn(B, N, H * D).double(), torch.randn(B, 4, H * D).double()
    q, k, v = gated.heads(x, context)
    mixed = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
    gate = torch.sigmoid(x @ gated.mechanism.gate.weight.T + gated.mechanism.gate.bias)
    assert_close(gated(x, context), gated.proj(mixed.transpose(1, 2).flatten(2) * gate), **EXACT)
