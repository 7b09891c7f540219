"""Where modules take the residual stream: the same places, if an MLP is a part of a layer or a module behind it."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from tests.capture.test_invented_models import EXACT, IMAGES, Layer, invented
from vit.capture.anatomy import examine
from vit.explain import contributions, explain, logit_lens


class Attending(nn.Module):
    """The first half of a layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = deepcopy(layer)

    def forward(self, tokens):
        return tokens + self.layer.attend(self.layer.norm1(tokens))


class Adding(nn.Module):
    """The second half of a layer."""

    def __init__(self, layer):
        super().__init__()
        self.norm, self.mlp = deepcopy(layer.norm2), deepcopy(layer.mlp)

    def forward(self, tokens):
        return tokens + self.mlp(self.norm(tokens))


class AddingInPlace(Adding):
    """The same sum, in the memory of the tokens."""

    def forward(self, tokens):
        added = self.mlp(self.norm(tokens.clone()))
        tokens += added
        return tokens


class WithoutSum(Adding):
    """The sum is outside."""

    def forward(self, tokens):
        return self.mlp(self.norm(tokens))


def in_a_list(second, run=None):
    """The same model as ``invented()`` with attentions and MLPs in turn in a list."""
    model = invented()
    halves = [half for layer in model.layers for half in (Attending(layer), second(layer))]
    model.layers, model.run = nn.ModuleList(halves), run
    return model


def with_sums(model, images):
    def step(number, module, tokens):
        return tokens + module(tokens) if number % 2 else module(tokens)

    return model.read(model.through(model.embed(images), step))


LISTS = {
    "residual modules": lambda: in_a_list(Adding),
    "sums in place": lambda: in_a_list(AddingInPlace),
    "sums outside of the modules": lambda: in_a_list(WithoutSum, with_sums),
}


@pytest.mark.parametrize("listed", LISTS)
def test_the_mlp_behind_the_last_attention_is_no_part_of_the_read_out(listed):
    model = LISTS[listed]()
    assert examine(model, IMAGES).parts.last.module is model.norm
    for read in (lambda model: explain(model, IMAGES, "legrad"), lambda model: logit_lens(model, IMAGES)):
        assert_close(read(model), read(invented()), **EXACT)


def test_contributions_of_a_list_are_those_of_its_layers():
    found, expected = (contributions(model, IMAGES) for model in (in_a_list(Adding), invented()))
    assert_close((found.heads, found.mlps), (expected.heads, expected.mlps), **EXACT)


def test_there_is_no_last_place_if_no_module_takes_the_last_sum():
    model = in_a_list(Adding, run=lambda model, images: model.head(model.through(model.embed(images))[:, 0]))
    assert examine(model, IMAGES).parts.last is None
    with pytest.raises(ValueError, match=r"no module .* between its last layer and its head"):
        logit_lens(model, IMAGES)


def test_tokens_that_are_added_to_others_of_another_shape_are_still_the_last():
    model = invented(run=lambda model, images: model.head(plus_mean(model, model.through(model.embed(images)))))

    def plus_mean(model, tokens):
        tokens = model.norm(tokens)
        return (tokens + tokens.mean(dim=1, keepdim=True))[:, 0]

    assert examine(model, IMAGES).parts.last.module is model.norm


class Normed(nn.Module):
    """A layer with a norm behind its sums."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.norm = deepcopy(layer), nn.LayerNorm(12).double()

    def forward(self, tokens):
        return self.norm(self.layer(tokens))


def behind(change, layer):
    """A model of such layers whose tokens a function changes before the final norm."""

    def run(model, images):
        return model.read(change(model.through(model.embed(images))))

    model = invented(run=run)
    model.layers = nn.ModuleList(layer(each) for each in model.layers)
    return model.eval()


def test_what_the_last_layer_returns_is_the_stream_even_if_it_is_no_sum():
    model = behind(lambda tokens: tokens, Normed)
    assert examine(model, IMAGES).parts.last.module is model.norm


@pytest.mark.parametrize("layer", [lambda layer: layer, Normed], ids=["sums", "norms"])
def test_a_sum_behind_layers_that_pass_their_output_on_is_no_part_of_the_last(layer):
    assert examine(behind(lambda tokens: tokens.flip(1), layer), IMAGES).parts.last is not None
    assert examine(behind(lambda tokens: tokens + torch.ones_like(tokens), layer), IMAGES).parts.last is None


def test_an_adapter_behind_the_layers_is_one_of_them():
    model = invented(run=lambda model, images: model.read(adapted(model, model.through(model.embed(images)))))

    def adapted(model, tokens):
        return tokens + torch.tanh(model.more(tokens))

    place = examine(model, IMAGES).parts.last
    assert place.module is model.norm


class Conditioned(Layer):
    """Takes something else before its tokens, and calls no module."""

    def forward(self, condition, tokens):
        q, k, v = self.split(F.layer_norm(tokens, (12,), self.norm1.weight, self.norm1.bias))
        tokens = tokens + F.linear(self.join(self.mix(self, q, k, v)), self.proj.weight, self.proj.bias)
        first, _, second = self.mlp
        inner = F.linear(F.layer_norm(tokens, (12,), self.norm2.weight, self.norm2.bias), first.weight, first.bias)
        return tokens + F.linear(F.gelu(inner), second.weight, second.bias)

    def split(self, tokens):
        return F.linear(tokens, self.qkv.weight, self.qkv.bias).unflatten(-1, (3, 3, -1)).permute(2, 0, 3, 1, 4)


@pytest.mark.parametrize("condition", ["nothing", "a number", "a token", "a token of each image", "other tokens"])
def test_tokens_are_found_among_the_arguments_of_a_layer(condition):
    def run(model, images):
        conditions = {
            "nothing": None,
            "a number": torch.tensor(3.0),
            "a token": model.first,
            "a token of each image": model.first.expand(len(images), -1, -1),
            "other tokens": model.embed(images),
        }

        def step(_, layer, tokens):
            return layer(conditions[condition], tokens) if isinstance(layer, Conditioned) else layer(tokens)

        return model.read(model.through(model.embed(images), step))

    model, plainly = invented(*(Conditioned() for _ in range(3)), run=run), invented(*(Layer() for _ in range(3)))
    reads = [lambda model: explain(model, IMAGES, "legrad"), lambda model: logit_lens(model, IMAGES)]
    for read in reads:
        if condition == "other tokens":
            with pytest.raises(ValueError, match=r"module for each layer"):
                read(model)
        else:
            assert_close(read(model), read(plainly), **EXACT)


class Arranged(Layer):
    """Takes its tokens in another layout, and adds positions first."""

    def __init__(self, adds):
        super().__init__()
        self.adds = adds

    def forward(self, tokens):
        tokens = tokens[0] if isinstance(tokens, list) else tokens.mT
        return super().forward(tokens + self.own[0, 0] if self.adds else tokens)


@pytest.mark.parametrize("arrange", [lambda tokens: [tokens], lambda tokens: tokens.mT], ids=["list", "channels first"])
def test_positions_that_a_layer_adds_in_another_layout_come_before_its_input(arrange):
    def run(model, images):
        return model.read(model.through(model.embed(images), lambda _, layer, tokens: layer(arrange(tokens))))

    for read in (lambda model: explain(model, IMAGES, "legrad"), lambda model: logit_lens(model, IMAGES)):
        plain = invented(*(Layer() for _ in range(3)))
        assert_close(read(invented(*(Arranged(False) for _ in range(3)), run=run)), read(plain), **EXACT)
        with pytest.raises(ValueError, match=r"module for each layer"):
            read(invented(*(Arranged(True) for _ in range(3)), run=run))


def test_a_layer_that_is_called_once_more_is_no_place_of_the_stream():
    """Its result is unused, and would be taken for one more layer."""

    def run(model, images):
        tokens = model.embed(images)
        model.layers[1](torch.zeros_like(tokens))
        return model.read(model.through(tokens))

    model = invented(run=run)
    assert examine(model, IMAGES).parts.layers == []
    for read in (lambda model: explain(model, IMAGES, "legrad"), lambda model: logit_lens(model, IMAGES)):
        with pytest.raises(ValueError, match=r"module for each layer"):
            read(model)


def test_a_norm_that_gets_the_tokens_of_its_layer_twice_is_entered_twice():
    def run(model, images):
        def step(number, layer, tokens):
            if number == 1:
                layer.norm1(tokens)
            return layer(tokens)

        return model.read(model.through(model.embed(images), step))

    for read in (lambda model: explain(model, IMAGES, "legrad"), lambda model: logit_lens(model, IMAGES)):
        with pytest.raises(ValueError, match="a layer of Invented is called more than once"):
            read(invented(run=run))
