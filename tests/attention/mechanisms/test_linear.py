"""Kernel attention, against its own quadratic form and against softmax."""

import pytest
import torch
from torch.testing import assert_close

from tests.architectures import EXACT
from tests.attention.inputs import assert_same_forward_and_backward, assert_sums_in_float32, flop_of, qkv
from vit.attention import scaled_dot_product_attention
from vit.attention.mechanisms import LinearAttention, RandomFeatureAttention
from vit.attention.mechanisms.linear import causal_kernel_attention, kernel_attention, orthogonal_rows

N, M, D = 5, 7, 11
EACH = pytest.mark.parametrize("attention", [LinearAttention(), RandomFeatureAttention(D, 16)])


def quadratic(q_features, k_features, v):
    products = q_features @ k_features.mT
    return products / products.sum(-1, keepdim=True) @ v


def test_elu_features_equal_their_quadratic_form_forward_and_backward():
    inputs = q, k, v = qkv(N, M, D)

    def phi(x):  # elu(x) + 1
        return torch.where(x > 0, x + 1, x.exp())

    assert_same_forward_and_backward(LinearAttention()(q, k, v), quadratic(phi(q), phi(k), v), inputs)


def test_random_features_equal_their_quadratic_form_forward_and_backward():
    inputs = q, k, v = qkv(N, M, D)
    attention = RandomFeatureAttention(head_dim=D, num_features=17).double()

    def phi(x):
        x = x * D**-0.25
        return (x @ attention.projection.T - x.square().sum(-1, keepdim=True) / 2).exp() / 17**0.5

    assert_same_forward_and_backward(attention(q, k, v), quadratic(phi(q), phi(k), v), inputs)


def test_the_error_of_random_features_falls_with_the_square_root_of_their_number():
    torch.manual_seed(0)
    q, k, v = qkv(N, M, D, scale=0.5)
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
    q, k, v = (x.float() for x in qkv(N, M, D))
    assert not ours(q, k, v).allclose(theirs(q, k, v))
    theirs.load_state_dict(ours.state_dict())
    assert_close(theirs(q, k, v), ours(q, k, v), rtol=0, atol=0)


@pytest.mark.parametrize("scale", [1.0, 30.0])
@EACH
def test_large_queries_and_keys_give_finite_outputs_and_gradients(attention, scale):
    q, k, v = qkv(N, M, D, scale=scale, dtype=torch.float32)
    output = attention(q, k, v)
    gradients = torch.autograd.grad(output.square().sum(), (q, k, v))
    assert all(x.isfinite().all() for x in (output, *gradients))


def test_a_query_whose_features_all_underflow_gets_zeros():
    output = kernel_attention(torch.zeros(1, 1, 2, 3), torch.ones(1, 1, 4, 3), torch.ones(1, 1, 4, 5))
    assert_close(output, torch.zeros(1, 1, 2, 5))


@pytest.mark.parametrize("causal", [False, True])
def test_a_query_of_large_negative_channels_attends_as_in_float64(causal):
    inputs = [x.detach().requires_grad_() for x in qkv(70, 70, 8, dtype=torch.float32)]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    outputs = [LinearAttention()(q - 80, k, v, causal=causal) for q, k, v in (inputs, wide)]
    assert_close(outputs[0].double(), outputs[1], rtol=1e-4, atol=1e-5)
    gradients = [torch.autograd.grad(o.square().sum(), x) for o, x in zip(outputs, (inputs, wide), strict=True)]
    assert_close([x.double() for x in gradients[0]], [*gradients[1]], rtol=1e-3, atol=1e-4)


@EACH
def test_the_cost_grows_with_the_number_of_tokens(attention):
    short, long = (flop_of(attention, *torch.randn(3, 1, 1, n, D)) for n in (1000, 2000))
    assert long == 2 * short


@EACH
def test_sums_are_computed_in_float32_under_autocast_and_for_narrower_inputs(attention):
    assert_sums_in_float32(attention, qkv(N, M, D), tolerance=1e-4)


def test_zero_features_are_refused():
    with pytest.raises(ValueError, match=r"num_features \(0\) must be a positive whole number"):
        RandomFeatureAttention(D, 0)


# Causal attention.


def phi(x):  # elu(x) + 1
    return torch.where(x > 0, x + 1, x.exp())


def looped(q, k, v):
    """The recurrent network of Katharopoulos et al. 2020, eq. 16 to 20: two sums, one token at a time."""
    values, weights, outputs = 0, 0, []
    for n in range(k.shape[2]):
        values = values + phi(k[:, :, n, :, None]) * v[:, :, n, None]
        weights = weights + phi(k[:, :, n])
        query = phi(q[:, :, n])
        outputs.append((query[..., None] * values).sum(-2) / (query * weights).sum(-1, keepdim=True))
    return torch.stack(outputs, dim=2)


@pytest.mark.parametrize("n", [1, 5, 63, 64, 67, 131])
def test_causal_attention_is_its_quadratic_form_and_a_recurrent_network_forward_and_backward(n):
    inputs = q, k, v = qkv(n, d=D)
    products = (phi(q) @ phi(k).mT).tril()
    expected = products / products.sum(-1, keepdim=True) @ v
    assert_same_forward_and_backward(LinearAttention()(*inputs, causal=True), expected, inputs)
    assert_close(looped(q, k, v), expected, **EXACT)


def test_fewer_queries_than_keys_are_the_last_positions():
    q, k, v = qkv(67, d=D)
    expected = LinearAttention()(q, k, v, causal=True)[:, :, -5:]
    assert_close(LinearAttention()(q[:, :, -5:], k, v, causal=True), expected, **EXACT)
    with pytest.raises(ValueError, match=r"there are 67 queries and 5 keys, .* give at least as many keys"):
        LinearAttention()(q, k[:, :, :5], v[:, :, :5], causal=True)


def test_the_state_is_the_sum_over_the_tokens_so_far():
    q, k, v = qkv(67, d=D)
    _, state = causal_kernel_attention(phi(q), phi(k), v)
    assert_close(state[..., :-1], phi(k).mT @ v, **EXACT)
    assert_close(state[..., -1], phi(k).sum(dim=2), **EXACT)


def test_the_cost_of_causal_attention_grows_with_the_number_of_tokens():
    short, long = (flop_of(LinearAttention(), *torch.randn(3, 1, 1, n, D), causal=True) for n in (1280, 2560))
    assert long == pytest.approx(2 * short, rel=1e-3)


def test_causal_sums_are_computed_in_float32_and_the_state_stays_so():
    attention = LinearAttention()
    assert_sums_in_float32(lambda q, k, v: attention(q, k, v, causal=True), qkv(M, d=D), tolerance=1e-4)
    assert attention.advance(*qkv(M, d=D, dtype=torch.bfloat16), None)[1].dtype == torch.float32
