"""Copies of an image whose weights belong to other keys: which, and how their tokens should move."""

import pytest
import torch
from torch.testing import assert_close

from tests.capture.test_invented_models import EXACT, IMAGES, Layer, invented
from vit.capture.attention_output import SAME_IN_DOUBLE
from vit.capture.experiments.followed_attention import STRENGTH, ExchangedWeights


def reached(image=IMAGES[:1]):
    """What is known at each attention of a model of two layers, and the weights of all copies."""
    begun, weights = [], []
    exchange = ExchangedWeights([0, 1], 16, lambda: begun.append(exchange.layer))
    changed = exchange.weights
    exchange.weights = lambda attn: weights.append((attn, changed(attn))) or weights[-1][1]
    with torch.no_grad():
        exchange.run(invented(Layer(), Layer()), image)
    return exchange, begun, weights


def test_each_layer_has_a_copy_of_which_the_weights_belong_to_the_next_key():
    exchange, begun, weights = reached()
    assert begun == [-1, 0]
    for layer, (given, edited) in enumerate(weights):
        assert_close(edited[layer + 1], STRENGTH * given[layer + 1].roll(1, dims=-1), **EXACT)
        others = [copy for copy in range(3) if copy != layer + 1]
        assert_close(edited[others], given[others], **EXACT)
    assert exchange.is_projected


def test_tokens_should_move_by_the_projection_of_what_the_changed_weights_mix():
    exchange, _, [_, (given, edited)] = reached()
    mixed = (edited[2] - given[0]) @ exchange.output.values[0]
    layer = invented(Layer(), Layer()).layers[1]
    assert_close(exchange.expected(), mixed.transpose(0, 1).flatten(1) @ layer.proj.weight.detach().T, **EXACT)


@pytest.mark.parametrize(
    ("arrange", "rows"),
    [
        (lambda copies: copies, 16),
        (lambda copies: copies.transpose(0, 1), 16),
        (lambda copies: copies.flatten(0, 1), 16),
        (lambda copies: copies[:, 0], 1),
        (lambda copies: copies[:, :1], 1),
    ],
    ids=["copies first", "tokens first", "in one axis", "one token", "one token with its axis"],
)
def test_tokens_are_read_by_image_in_any_arrangement(arrange, rows):
    exchange, *_ = reached()
    copies = torch.randn(3, 16, 12, dtype=torch.float64)
    assert_close(exchange.by_image(arrange(copies)), copies[:, :rows])
    assert exchange.by_image(copies[:, :5]) is None
    assert exchange.by_image(copies[..., :5]) is None
    assert exchange.by_image(None) is None


def test_as_many_copies_as_tokens_are_one_more():
    exchange = ExchangedWeights(range(15), num_tokens=16)
    exchange.run(invented(*(Layer() for _ in range(15))), IMAGES[:1])
    assert exchange.count == 17


def test_the_copies_are_the_image_as_it_is():
    model, passed = invented(Layer(), Layer()), []
    model.register_forward_pre_hook(lambda _, args: passed.append(args[0]))
    ExchangedWeights([0, 1], num_tokens=16).run(model, IMAGES[:1])
    assert torch.equal(passed[-1], IMAGES[:1].repeat(3, 1, 1, 1))


def test_rounding_is_a_share_of_the_largest_number_that_is_expected():
    exchange, *_ = reached()
    copies = torch.randn(3, 16, 12, dtype=torch.float64)
    allowed = exchange.allowed(invented(Layer(), Layer()), copies)
    assert allowed == SAME_IN_DOUBLE * float(exchange.expected().abs().max())
    assert exchange.allowed(invented(Layer(), Layer()), 1e15 * copies) is None
