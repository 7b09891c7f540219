"""Landmarks, against softmax if there are as many as tokens."""

import pytest
import torch
from torch.testing import assert_close

from tests.architectures import EXACT
from tests.attention.inputs import assert_same_forward_and_backward, assert_sums_in_float32, flop_of, qkv
from vit.attention import scaled_dot_product_attention
from vit.attention.mechanisms import LinformerAttention, NystromAttention
from vit.attention.mechanisms.lowrank import nystrom, pseudo_inverse, segment_means

B, H, D, E = 2, 3, 11, 13


@pytest.mark.parametrize("n", [1, 5, 23])
def test_as_many_landmarks_as_tokens_reconstruct_softmax_attention(n):
    torch.manual_seed(0)
    inputs = qkv(n)
    output = nystrom(*inputs, landmarks=n, iterations=40)
    expected, _ = scaled_dot_product_attention(*inputs)
    assert_same_forward_and_backward(output, expected, inputs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 5), (23, 23), (65, 65), (5, 9), (9, 5)])
def test_with_at_least_as_many_landmarks_as_tokens_it_is_softmax_attention(n, m):
    q, k, v = qkv(n, m)
    expected, _ = scaled_dot_product_attention(q, k, v)
    for landmarks in (min(n, m), min(n, m) + 1):
        assert_close(NystromAttention(landmarks)(q, k, v), expected, **EXACT)


def test_fewer_landmarks_give_the_three_matrices_of_the_paper():
    q, k, v = qkv(12, 20)
    landmarks = [x.unflatten(2, (4, -1)).mean(3) for x in (q, k)]

    def softmax(a, b):
        return (a @ b.mT * D**-0.5).softmax(-1)

    inverse = torch.linalg.pinv(softmax(*landmarks))
    expected = softmax(q, landmarks[1]) @ inverse @ softmax(landmarks[0], k) @ v
    assert_close(NystromAttention(landmarks=4, iterations=60)(q, k, v), expected, rtol=1e-7, atol=1e-7)


def test_more_landmarks_approximate_softmax_better():
    torch.manual_seed(0)
    q, k, v = qkv(64, scale=0.5)
    expected, _ = scaled_dot_product_attention(q, k, v)
    errors = [(NystromAttention(count)(q, k, v) - expected).square().mean().item() for count in (2, 16, 63)]
    assert errors[0] > errors[1] > errors[2]


def test_the_pseudo_inverse_is_that_of_torch():
    matrix = torch.rand(B, H, 7, 7, dtype=torch.float64) + 3 * torch.eye(7, dtype=torch.float64)
    assert_close(pseudo_inverse(matrix, 30), torch.linalg.pinv(matrix), **EXACT)


def test_few_iterations_of_the_pseudo_inverse_do_not_amplify_tiny_singular_values():
    nearly_singular = torch.tensor([[[[1.0, 0.0], [0.0, 1e-6]]]], dtype=torch.float64)
    inverse = pseudo_inverse(nearly_singular, 6)
    assert inverse[0, 0, 0, 0].item() == pytest.approx(1.0)
    assert inverse[0, 0, 1, 1].item() == pytest.approx(1e-6 * (13 / 4) ** 6, rel=1e-3)  # each step: 13 / 4 times
    assert pseudo_inverse(nearly_singular, 40)[0, 0, 1, 1].item() == pytest.approx(1e6)


def test_segment_means_are_those_computed_by_hand():
    x = torch.arange(6.0).reshape(1, 1, 6, 1)
    assert segment_means(x, 3).flatten().tolist() == [0.5, 2.5, 4.5]
    assert_close(segment_means(x, 6), x)


def test_products_are_computed_in_float32_under_autocast_and_for_narrower_inputs():
    assert_sums_in_float32(NystromAttention(7), qkv(23), tolerance=1e-3)


# Linformer.


def identity(grid):
    """A linformer with one landmark for each patch."""
    patches = grid[0] * grid[1]
    attention = LinformerAttention(grid, landmarks=patches).double()
    for mixture in (attention.k_mixture, attention.v_mixture):
        mixture.data = torch.eye(patches, dtype=torch.float64).reshape(patches, *grid)
    return attention


@pytest.mark.parametrize("prefix", [0, 2])
def test_identity_mixtures_are_softmax_attention(prefix):
    q, k, v = qkv(prefix + 15)
    expected, _ = scaled_dot_product_attention(q, k, v)
    assert_close(identity((3, 5))(q, k, v, grid=(3, 5)), expected, **EXACT)


def test_keys_and_values_are_mixed_by_their_own_matrices_and_the_prefix_is_not():
    attention = LinformerAttention((3, 5), landmarks=4).double()
    q, k, v = qkv(2 + 15)
    e, f = (mixture.flatten(1) for mixture in (attention.k_mixture, attention.v_mixture))
    mixed_k = torch.cat([k[:, :, :2], e @ k[:, :, 2:]], 2)
    mixed_v = torch.cat([v[:, :, :2], f @ v[:, :, 2:]], 2)
    expected, _ = scaled_dot_product_attention(q, mixed_k, mixed_v)
    assert_close(attention(q, k, v, grid=(3, 5)), expected, **EXACT)


def test_on_another_grid_the_weights_of_a_mixture_have_the_same_sum():
    attention = LinformerAttention((3, 5), landmarks=4)
    for mixture in (attention.k_mixture, attention.v_mixture):
        torch.nn.init.constant_(mixture, 1 / 15)
    q, one = torch.randn(1, 1, 77, D), torch.ones(1, 1, 77, 1)
    k, v = torch.zeros(1, 1, 77, D), torch.rand(E) * one
    assert_close(attention(q, k, v, grid=(7, 11)), v)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixtures_of_narrow_numbers_are_resized(dtype):
    attention, inputs = LinformerAttention((3, 5), landmarks=4), qkv(2 + 77, dtype=torch.float32)
    expected = attention(*inputs, grid=(7, 11))
    found = attention.to(dtype)(*(x.to(dtype) for x in inputs), grid=(7, 11))
    assert_close(found.float(), expected, rtol=0.03, atol=0.03)


def test_a_missing_grid_is_refused():
    with pytest.raises(ValueError, match="linformer mixes the patches of a grid: pass grid_size="):
        LinformerAttention(None)
    q, k, v = qkv(10)
    with pytest.raises(ValueError, match="LinformerAttention needs the grid of patches"):
        LinformerAttention((3, 3)).double()(q, k, v)


@pytest.mark.parametrize("mechanism", ["nystrom", "linformer"])
def test_the_cost_grows_with_the_number_of_tokens(mechanism):
    flops = []
    for side in (32, 64):
        attention = NystromAttention(8) if mechanism == "nystrom" else LinformerAttention((side, side), 8)
        around = {} if mechanism == "nystrom" else {"grid": (side, side)}
        flops.append(flop_of(attention, *torch.randn(3, 1, 1, side**2, D, dtype=torch.bfloat16), **around))
    assert flops[1] / flops[0] == pytest.approx(4, rel=0.1)


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match=r"landmarks \(0\) must be a positive whole number"):
        NystromAttention(0)
    with pytest.raises(ValueError, match=r"iterations \(0\) must be a positive whole number"):
        NystromAttention(4, 0)
    with pytest.raises(ValueError, match=r"landmarks \(0\) must be a positive whole number"):
        LinformerAttention((2, 2), 0)
