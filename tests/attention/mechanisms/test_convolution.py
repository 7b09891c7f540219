"""Convolution as attention, against torch's convolution."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import vit
from tests.architectures import EXACT, randomised
from tests.attention.inputs import assert_same_forward_and_backward, flop_of, qkv
from vit.attention import MultiHeadAttention
from vit.attention.mechanisms import ConvolutionAttention
from vit.capture import capture_attention

H, ROWS, COLUMNS = 3, 5, 7


@pytest.mark.parametrize("size", [1, 3, 5])
def test_nine_heads_of_one_offset_each_are_a_convolution_border_included(size):
    heads, width, out = size**2, 2, 11
    attention = randomised(MultiHeadAttention(heads * width, heads, out_dim=out, mechanism="convolution",
                                              mechanism_kwargs={"kernel": size}))  # fmt: skip
    attention.mechanism.kernel.data = torch.eye(heads).double().unflatten(1, (size, size))
    tokens = torch.randn(2, ROWS * COLUMNS, heads * width).double()
    values, of_values = (x.detach()[2 * heads * width :] for x in (attention.qkv.weight, attention.qkv.bias))
    kernel = torch.einsum(
        "ohd,hdc->och", attention.proj.weight.unflatten(1, (heads, width)), values.unflatten(0, (heads, width))
    )
    images = tokens.mT.unflatten(2, (ROWS, COLUMNS))
    convolved = F.conv2d(images, kernel.unflatten(2, (size, size)), attention.proj.bias, padding=size // 2)
    # The bias of a value counts where there is a patch.
    biases = torch.einsum(
        "ohd,hd->oh", attention.proj.weight.unflatten(1, (heads, width)), of_values.unflatten(0, (heads, width))
    )
    convolved = convolved + F.conv2d(
        torch.ones_like(images[:, :1]), biases[:, None].unflatten(2, (size, size)), padding=size // 2
    )
    assert_close(attention(tokens, grid=(ROWS, COLUMNS)), convolved.flatten(2).mT, rtol=0, atol=1e-12)


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize("size", [1, 3, 9])
def test_each_patch_has_the_weight_of_its_offset_and_a_prefix_token_the_mean(prefix, size):
    attention = randomised(ConvolutionAttention(H, size))
    places = [(y, x) for y in range(ROWS) for x in range(COLUMNS)]
    total = prefix + len(places)
    expected = torch.zeros(2, H, total, total).double()
    expected[:, :, :prefix] = 1 / total
    for n, query in enumerate(places):
        for m, key in enumerate(places):
            down, right = (there - here + size // 2 for here, there in zip(query, key, strict=True))
            if 0 <= down < size and 0 <= right < size:
                expected[:, :, prefix + n, prefix + m] = attention.kernel[:, down, right]
    inputs = q, k, v = qkv(total)
    weights = attention.weights(q, k, grid=(ROWS, COLUMNS))
    assert_close(weights, expected, **EXACT)
    assert_same_forward_and_backward(attention(*inputs, grid=(ROWS, COLUMNS)), expected.detach() @ v, [v])


def test_another_image_changes_no_weight():
    attention = randomised(ConvolutionAttention(H))
    (q, k, _), (other_q, other_k, _) = qkv(35), qkv(35)
    assert_close(attention.weights(q, k, grid=(5, 7)), attention.weights(other_q, other_k, grid=(5, 7)), **EXACT)


def test_the_cost_grows_with_the_number_of_patches():
    few, many = (
        flop_of(ConvolutionAttention(1), *torch.randn(3, 1, 1, side**2, 8), grid=(side, side)) for side in (8, 16)
    )
    assert many == 4 * few


def test_its_weights_are_captured_in_each_layer_of_a_model():
    model = randomised(
        vit.VisionTransformer((6, 10), 2, embed_dim=12, depth=2, num_heads=3, attention="convolution", num_registers=1)
    )
    images = torch.randn(2, 3, 6, 10).double()
    tokens = torch.randn(2, 17, 12).double()
    for block, captured in zip(model.blocks, capture_attention(model, images), strict=True):
        assert_close(captured, block.attn.weights(tokens, grid=(3, 5)), **EXACT)


@pytest.mark.parametrize("kernel", [0, -3, 4])
def test_a_kernel_without_a_middle_is_refused(kernel):
    with pytest.raises(ValueError, match=rf"kernel \({kernel}\) must be odd and positive: take \d+ or -?\d+"):
        ConvolutionAttention(H, kernel)


def test_tokens_that_are_no_image_are_refused():
    q, k, v = qkv(10)
    with pytest.raises(ValueError, match="ConvolutionAttention needs the grid of patches"):
        ConvolutionAttention(H).double()(q, k, v)
