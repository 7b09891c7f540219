"""Kernel attention, against its own quadratic form and against softmax."""

import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from vit.attention import scaled_dot_product_attention
from vit.attention.mechanisms import LinearAttention, RandomFeatureAttention
from vit.attention.mechanisms.linear import kernel_attention, orthogonal_rows

B, H, N, M, D, E = 2, 3, 5, 7, 11, 13
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def qkv(dtype=torch.float64, scale=1.0):
    q, k, v = torch.randn(B, H, N, D), torch.randn(B, H, M, D), torch.randn(B, H, M, E)
    return tuple(x.to(dtype).requires_grad_() for x in (scale * q, scale * k, v))


def quadratic(q_features, k_features, v):
    products = q_features @ k_features.mT
    return products / products.sum(-1, keepdim=True) @ v


def assert_same_forward_and_backward(ours, expected, inputs):
    assert_close(ours, expected, **EXACT)
    direction = torch.randn_like(expected)
    gradients = torch.autograd.grad(ours, inputs, direction)
    assert_close(gradients, torch.autograd.grad(expected, inputs, direction), **EXACT)


def test_elu_features_equal_their_quadratic_form_forward_and_backward():
    inputs = q, k, v = qkv()

    def phi(x):  # elu(x) + 1
        return torch.where(x > 0, x + 1, x.exp())

    assert_same_forward_and_backward(LinearAttention()(q, k, v), quadratic(phi(q), phi(k), v), inputs)


def test_random_features_equal_their_quadratic_form_forward_and_backward():
    inputs = q, k, v = qkv()
    attention = RandomFeatureAttention(head_dim=D, num_features=17).double()

    def phi(x):
        x = x * D**-0.25
        return (x @ attention.projection.T - x.square().sum(-1, keepdim=True) / 2).exp() / 17**0.5

    assert_same_forward_and_backward(attention(q, k, v), quadratic(phi(q), phi(k), v), inputs)


def test_the_error_of_random_features_falls_with_the_square_root_of_their_number():
    torch.manual_seed(0)
    q, k, v = qkv(scale=0.5)
    expected, _ = scaled_dot_product_attention(q, k, v)

    def error(num_features):
        draws = [RandomFeatureAttention(D, num_features).double()(q, k, v) for _ in range(20)]
        return torch.stack([(draw - expected).square().mean() for draw in draws]).mean().sqrt().item()

    errors = [error(num_features) for num_features in (64, 1024)]
    assert errors[1] < 0.04
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.4)


def test_the_mean_of_random_kernels_is_the_exponential():
    torch.manual_seed(0)
    x, y = 0.4 * torch.randn(2, D, dtype=torch.float64)
    rows = torch.cat([orthogonal_rows(D, D) for _ in range(5000)]).double()
    kernel = ((rows @ x - x @ x / 2).exp() * (rows @ y - y @ y / 2).exp()).mean()
    assert kernel.item() == pytest.approx((x @ y).exp().item(), rel=0.01)


def test_random_rows_are_orthogonal_in_groups_with_the_norms_of_gaussian_ones():
    torch.manual_seed(0)
    rows = orthogonal_rows(2 * D + 3, D)
    assert rows.shape == (2 * D + 3, D)
    for group in rows.split(D):
        products = group @ group.T
        assert_close(products - products.diagonal().diag(), torch.zeros_like(products), rtol=0, atol=1e-4)
    assert orthogonal_rows(5000, D).square().sum(-1).mean().item() == pytest.approx(D, rel=0.05)


def test_the_random_rows_are_saved_with_the_weights():
    ours, theirs = RandomFeatureAttention(D, 8), RandomFeatureAttention(D, 8)
    q, k, v = (x.float() for x in qkv())
    assert not ours(q, k, v).allclose(theirs(q, k, v))
    theirs.load_state_dict(ours.state_dict())
    assert_close(theirs(q, k, v), ours(q, k, v), rtol=0, atol=0)


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("attention", [LinearAttention(), RandomFeatureAttention(D, 16)])
def test_large_queries_and_keys_give_finite_outputs_and_gradients(attention, scale):
    q, k, v = qkv(torch.float32, scale)
    output = attention(q, k, v)
    gradients = torch.autograd.grad(output.square().sum(), (q, k, v))
    assert all(x.isfinite().all() for x in (output, *gradients))


def test_a_query_whose_features_all_underflow_gets_zeros():
    output = kernel_attention(torch.zeros(1, 1, 2, 3), torch.ones(1, 1, 4, 3), torch.ones(1, 1, 4, 5))
    assert_close(output, torch.zeros(1, 1, 2, 5))


@pytest.mark.parametrize("attention", [LinearAttention(), RandomFeatureAttention(D, 16)])
def test_sums_are_computed_in_float32_under_autocast_and_for_narrower_inputs(attention):
    q, k, v = (x.detach() for x in qkv())
    expected = attention(q, k, v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = attention(q.float(), k.float(), v.float())
    assert output.dtype == torch.float32
    assert_close(output.double(), expected, rtol=1e-4, atol=1e-4)
    narrow = [x.bfloat16() for x in (q, k, v)]
    output = attention(*narrow)
    assert output.dtype == torch.bfloat16
    assert_close(output, attention(*(x.float() for x in narrow)).bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("attention", [LinearAttention(), RandomFeatureAttention(D, 16)])
def test_the_cost_grows_with_the_number_of_tokens(attention):
    flops = []
    for n in (1000, 2000):
        with FlopCounterMode(display=False) as counter:
            attention(*torch.randn(3, 1, 1, n, D))
        flops.append(counter.get_total_flops())
    assert flops[1] == 2 * flops[0]


def test_zero_features_are_refused():
    with pytest.raises(ValueError, match=r"num_features \(0\) must be at least 1"):
        RandomFeatureAttention(D, 0)
