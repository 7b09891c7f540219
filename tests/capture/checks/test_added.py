"""Tokens must move as the weights, values and projection of an attention say."""

import pytest
import torch

from tests.capture.test_invented_models import IMAGES, Layer, invented
from vit.capture.checks.added import tokens_agree


class Adding(Layer):
    """A layer that adds its attention by a function."""

    def __init__(self, add):
        super().__init__()
        self.add = add

    def forward(self, tokens):
        tokens = self.add(tokens, self.attend(self.norm1(tokens)))
        return tokens + self.mlp(self.norm2(tokens))


def agree(model, images=IMAGES):
    return tokens_agree(model, images[:1], range(len(model.layers)), 16)


@pytest.mark.parametrize(
    ("add", "expected"),
    [
        (lambda tokens, added: tokens + added, True),
        (lambda tokens, added: 0.1 * added + tokens, True),
        (lambda tokens, added: added, True),
        (lambda tokens, added: tokens + added + added, False),
        (lambda tokens, added: 0.5 * (tokens + added), False),
        (lambda tokens, added: (tokens + added).tanh(), False),
    ],
    ids=["sum", "factor before it", "no skip connection", "second sum", "factor after it", "function after it"],
)
def test_a_sum_agrees_unless_something_follows_it(add, expected):
    assert agree(invented(Layer(), Adding(add))) == [True, expected]
    assert agree(invented(Adding(add), Layer())) == [expected, True]


def test_what_rounding_hides_is_unknown():
    model = invented(Adding(lambda tokens, added: tokens + 1e-9 * added), Layer())
    assert agree(model) == [True, True]
    assert agree(model.float(), IMAGES.float()) == [None, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_agrees(dtype):
    assert False not in agree(invented(Layer(), Layer()).to(dtype), IMAGES.to(dtype))


def test_a_layer_after_which_nothing_takes_tokens_is_unknown():
    class Bare(Layer):
        def forward(self, tokens):
            return tokens + self.attend(self.norm1(tokens))

    model = invented(Layer(), Bare(), run=lambda model, x: model.through(model.embed(x))[:, 0, :7])
    assert agree(model) == [True, None]
