"""Masks and shapes that the fused functions of torch take."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT
from tests.capture.test_invented_models import IMAGES, Layer, invented
from vit.capture import capture_attention
from vit.capture.interception.intercept import InterceptAttention


class Torchs(Layer):
    """``nn.MultiheadAttention``, called by ``call(attention, tokens)``."""

    def __init__(self, call):
        super().__init__()
        self.call, self.attention = call, nn.MultiheadAttention(12, 3, batch_first=True)

    def attend(self, tokens):
        return self.call(self.attention, tokens)


def mixed_again(attention, tokens):
    mixed, weights = attention(tokens, tokens, tokens)
    return mixed + weights @ tokens


def gated_by_what_it_receives(attention, tokens):
    mixed, weights = attention(tokens, tokens, tokens)
    return mixed * (1 + weights.sum(dim=1)[..., None])


@pytest.mark.parametrize("call", [mixed_again, gated_by_what_it_receives])
def test_returned_weights_that_move_tokens_once_more_are_refused(call):
    with pytest.raises(ValueError, match="mixes tokens in a way that cannot be intercepted"):
        capture_attention(invented(Torchs(call), Layer()), IMAGES)


def test_keys_of_another_width_have_projections_of_their_own():
    narrow = nn.MultiheadAttention(12, 3, kdim=11, vdim=10, batch_first=True)
    layer = Torchs(lambda _, x: layer_of(model)(x, x[..., :11], x[..., :10])[0])
    layer.attention = narrow
    model = invented(layer)

    def layer_of(model):
        return model.layers[0].attention

    tokens = model.layers[0].norm1(model.embed(IMAGES))
    q_bias, k_bias, _ = layer_of(model).in_proj_bias.chunk(3)
    q = F.linear(tokens, layer_of(model).q_proj_weight, q_bias).unflatten(-1, (3, 4))
    k = F.linear(tokens[..., :11], layer_of(model).k_proj_weight, k_bias).unflatten(-1, (3, 4))
    expected = (torch.einsum("bnhd,bmhd->bhnm", q, k) / 2).softmax(dim=-1)
    assert_close(capture_attention(model, IMAGES)[0], expected, **EXACT)


@pytest.mark.parametrize("given", ["static_k", "static_v", "key_padding_mask"])
def test_keys_that_are_given_beside_the_tokens_are_refused(given):
    def call(attention, x):
        weights = attention.in_proj_weight, attention.in_proj_bias, None, None, False, 0.0
        output = attention.out_proj.weight, attention.out_proj.bias
        hidden = torch.arange(16).expand(len(x), -1) == 15
        others = torch.randn(3 * len(x), 16, 4).to(x) if given != "key_padding_mask" else hidden
        y = x.transpose(0, 1)
        mixed, _ = F.multi_head_attention_forward(y, y, y, 12, 3, *weights, *output, training=False, **{given: others})
        return mixed.transpose(0, 1)

    with pytest.raises(ValueError, match="cannot be seen: write its attention with scaled_dot_product_attention"):
        capture_attention(invented(Torchs(call)), IMAGES)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float64])
def test_a_padding_that_hides_no_key_is_none(dtype):
    def padded(attention, x):
        return attention(x, x, x, key_padding_mask=torch.zeros(x.shape[:2], dtype=dtype))[0]

    found, expected = (
        capture_attention(invented(Torchs(call), Layer()), IMAGES)
        for call in (padded, lambda attention, x: attention(x, x, x)[0])
    )
    assert_close(list(found), list(expected), **EXACT)


def mask_of_each(tokens):
    """A mask for each image and head, (B * H, N, N)."""
    size = tokens.shape[1]
    mask = torch.rand(size, size, generator=torch.Generator().manual_seed(0)).to(tokens)
    return mask * torch.arange(3).to(tokens).repeat(len(tokens))[:, None, None]


def test_a_mask_for_each_image_and_head_of_multihead_attention_is_heeded():
    model = invented(Torchs(lambda attention, x: attention(x, x, x, attn_mask=mask_of_each(x))[0])).double()
    tokens = model.layers[0].norm1(model.embed(IMAGES))
    attention = model.layers[0].attention
    q, k, _ = F.linear(tokens, attention.in_proj_weight, attention.in_proj_bias).unflatten(-1, (3, 3, -1)).unbind(2)
    logits = torch.einsum("bnhd,bmhd->bhnm", q, k) / 2 + mask_of_each(tokens).unflatten(0, (-1, 3))
    assert_close(capture_attention(model, IMAGES)[0], logits.softmax(dim=-1), **EXACT)


@pytest.mark.parametrize("images", [IMAGES, IMAGES[:1]], ids=["three images", "one image"])
def test_the_tokens_of_one_image_are_refused(images):
    model = invented(Torchs(lambda attention, x: torch.stack([attention(one, one, one)[0] for one in x])))
    with pytest.raises(ValueError, match=r"gets the tokens of one image, \(16, 12\), as in a loop over images"):
        capture_attention(model, images)


def test_a_mask_of_the_function_itself_is_true_where_a_query_may_not_attend():
    hidden = torch.ones(16, 16, dtype=torch.bool).triu(1)

    def call(attention, x):
        weights = attention.in_proj_weight, attention.in_proj_bias, None, None, False, 0.0
        output = attention.out_proj.weight, attention.out_proj.bias
        x = x.transpose(0, 1)
        mixed, _ = F.multi_head_attention_forward(x, x, x, 12, 3, *weights, *output, training=False, attn_mask=hidden)
        return mixed.transpose(0, 1)

    assert (capture_attention(invented(Torchs(call)), IMAGES)[0][..., hidden] == 0).all()


def test_one_mask_for_attention_of_three_axes_is_heeded():
    def fused(layer, q, k, v):
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, layer.bias[:1, :16, :16], scale=0.5)
        return mixed.unflatten(0, (-1, 3))

    model = invented(Layer(fused))
    q, k, _ = model.layers[0].split(model.layers[0].norm1(model.embed(IMAGES)))
    expected = (q @ k.mT / 2 + model.layers[0].bias[0, :16, :16]).softmax(dim=-1)
    assert_close(capture_attention(model, IMAGES)[0], expected, **EXACT)


@pytest.mark.parametrize("value", [-1e9, torch.finfo(torch.float32).min])
def test_a_row_of_one_large_number_leaves_no_digits_for_the_logits_as_in_torch(value):
    mask = torch.zeros(16, 16)
    mask[3] = value
    model = invented(Layer(lambda layer, q, k, v: F.scaled_dot_product_attention(q, k, v, mask))).float()
    assert_close(capture_attention(model, IMAGES.float())[0][:, :, 3], torch.full((len(IMAGES), 3, 16), 1 / 16))


def test_causal_attention_to_more_keys_than_queries_counts_from_the_first_key_as_in_torch():
    class ToMemory(nn.Module):
        def forward(self, tokens):
            memory = torch.cat([tokens, tokens.flip(1)], dim=2)
            return F.scaled_dot_product_attention(tokens, memory, memory, is_causal=True)

    tokens = torch.randn(2, 1, 3, 4, dtype=torch.float64)
    with InterceptAttention(ToMemory(), lambda _, attn: attn):
        found = ToMemory()(tokens)
    assert_close(found, ToMemory()(tokens))
