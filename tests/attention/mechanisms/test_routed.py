"""Attention of chosen heads, against softmax attention times gates."""

import itertools

import pytest
import torch
from torch.testing import assert_close

import vit
from tests.architectures import EXACT, randomised
from tests.attention.inputs import assert_same_forward_and_backward, flop_of, qkv
from vit.attention import scaled_dot_product_attention
from vit.attention.mechanisms import RoutedAttention
from vit.capture import capture_attention

H, N, M, D, E, C = 3, 5, 7, 11, 13, 17


@pytest.fixture
def tokens():
    return torch.randn(2, N, C, dtype=torch.float64)


@pytest.mark.parametrize("by", ["image", "token"])
def test_with_all_heads_and_gates_of_one_it_is_softmax_attention(by, tokens):
    q, k, v = qkv(N, M, D, E)
    attention = RoutedAttention(C, H, k=H, by=by).double()
    torch.nn.init.zeros_(attention.router)
    expected, weights = scaled_dot_product_attention(q, k, v)
    assert_close(attention(q, k, v, tokens=tokens), expected, rtol=0, atol=1e-12)
    assert_close(attention.weights(q, k, tokens=tokens), weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_each_image_has_its_best_heads_times_their_gates_and_zeros_elsewhere(kept, tokens):
    inputs = q, k, v = qkv(N, M, D, E)
    attention = randomised(RoutedAttention(C, H, kept))
    logits = tokens.mean(dim=1) @ attention.router.T
    gates = torch.zeros(2, H).double()
    for image in range(2):
        best = sorted(range(H), key=lambda head: -logits[image, head])[:kept]
        gates[image, best] = H * logits[image].softmax(dim=-1)[best]
    assert (gates > 0).sum(dim=1).tolist() == [kept, kept]
    mixed, weights = scaled_dot_product_attention(q, k, v)
    expected = mixed * gates.detach()[..., None, None]
    assert_same_forward_and_backward(attention(q, k, v, tokens=tokens), expected, inputs)
    assert_close(attention.weights(q, k, tokens=tokens), weights * gates[..., None, None], **EXACT)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_each_token_has_its_best_heads_times_their_gates_and_zeros_elsewhere(kept, tokens):
    inputs = q, k, v = qkv(N, M, D, E)
    attention = randomised(RoutedAttention(C, H, kept, by="token"))
    gates = torch.zeros(2, H, N, 1).double()
    for image, token in itertools.product(range(2), range(N)):
        logits = attention.router @ tokens[image, token]
        best = sorted(range(H), key=lambda head: -logits[head])[:kept]
        gates[image, best, token, 0] = H * logits.softmax(dim=0)[best]
    mixed, weights = scaled_dot_product_attention(q, k, v)
    assert_same_forward_and_backward(attention(q, k, v, tokens=tokens), mixed * gates.detach(), inputs)
    assert_close(attention.weights(q, k, tokens=tokens), weights * gates, **EXACT)
    assert len(gates[0].unique(dim=1)) > 1  # tokens of an image differ


def test_images_of_a_batch_choose_their_own_heads():
    attention = RoutedAttention(C, H, k=1).double()
    attention.router.data = torch.eye(H, C).double()
    tokens = torch.eye(H, C).double()[[2, 0, 1]][:, None].expand(3, N, C)
    heads, gates = attention.route(tokens)
    assert heads.tolist() == [[2], [0], [1]]
    expected = H * torch.tensor([1.0, 0.0, 0.0]).double().softmax(dim=0)[0]
    assert_close(gates, expected.expand(3, 1), **EXACT)


def test_heads_left_out_are_not_computed():
    q, k, v = (torch.randn(2, 8, 64, 16, dtype=torch.bfloat16) for _ in range(3))  # whose explicit form is counted
    tokens = torch.randn(2, 64, C)
    router = flop_of(RoutedAttention(C, 8, 1), q[:, :, :1], k[:, :, :1], v[:, :, :1], tokens=tokens)
    few, all_heads = (flop_of(RoutedAttention(C, 8, kept), q, k, v, tokens=tokens) for kept in (2, 8))
    assert (all_heads - router) / (few - router) == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize("by", ["image", "token"])
def test_the_router_learns(by):
    widths = {"embed_dim": 12, "depth": 2, "num_heads": 3}
    model = vit.VisionTransformer((6, 10), 2, **widths, attention="routed", attention_kwargs={"by": by})
    torch.nn.init.normal_(model.head.weight)
    model(torch.randn(3, 3, 6, 10)).square().sum().backward()
    assert all((block.attn.mechanism.router.grad != 0).any() for block in model.blocks)


def test_the_attention_of_a_model_is_captured_with_its_gates():
    model = randomised(vit.VisionTransformer((6, 10), 2, embed_dim=12, depth=2, num_heads=3, attention="routed"))
    images = torch.randn(2, 3, 6, 10).double()
    block, (first, _) = model.blocks[0], capture_attention(model, images)
    tokens = block.norm1(model.embed(images))
    assert_close(first, block.attn.weights(tokens), **EXACT)
    assert ((first != 0).any(dim=(2, 3)).sum(dim=1) == 2).all()  # the half of three heads, rounded up


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 4}, r"k \(4\) heads are more than num_heads \(3\): take at most 3"),
        ({"k": 0}, r"k \(0\) must be a positive whole number"),
        ({"by": "class"}, "by 'class'"),
    ],
)
def test_more_heads_than_there_are_and_none_and_another_choice_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RoutedAttention(C, H, **options)
