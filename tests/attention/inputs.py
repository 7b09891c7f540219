"""Inputs of attention, and what is compared: outputs with their gradients, and costs."""

import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from tests.architectures import EXACT


def qkv(n, m=None, d=11, e=13, scale=1.0, dtype=torch.float64):
    """Queries (2, 3, N, d), keys (2, 3, M, d) and values (2, 3, M, e) of two images and three heads."""
    q, k, v = (torch.randn(2, 3, *shape) for shape in ((n, d), (m or n, d), (m or n, e)))
    return tuple(x.to(dtype).requires_grad_() for x in (scale * q, scale * k, v))


def assert_same_forward_and_backward(ours, expected, inputs, **tolerance):
    """The outputs are equal, and so are their gradients by the inputs."""
    assert_close(ours, expected, **EXACT)
    direction = torch.randn_like(expected)
    gradients = torch.autograd.grad(ours, inputs, direction)
    assert_close(gradients, torch.autograd.grad(expected, inputs, direction), **EXACT | tolerance)


def assert_sums_in_float32(attention, inputs, tolerance):
    """Sums are computed in float32 under autocast and for bfloat16, and the output has the type of the values."""
    inputs = [x.detach() for x in inputs]
    expected = attention(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = attention(*(x.float() for x in inputs))
    assert output.dtype == torch.float32
    assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)
    narrow = [x.bfloat16() for x in inputs]
    wide = attention(*(x.float() for x in narrow))
    assert_close(attention(*narrow), wide.bfloat16(), rtol=0, atol=0)


def flop_of(attention, *inputs, **around):
    """The floating-point operations of a call."""
    with FlopCounterMode(display=False) as counter:
        attention(*inputs, **around)
    return counter.get_total_flops()
