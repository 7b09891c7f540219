"""Tokens that change places between layers, against the same model without it."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT, ours, randomised
from tests.capture.test_invented_models import IMAGES as INVENTED_IMAGES
from tests.capture.test_invented_models import Layer, backwards, invented, softmax
from tests.capture.wrapped_model import Around
from vit.analysis import describe_heads
from vit.capture import capture_attention, examine
from vit.capture.parts.order import check_last_rows, in_first_order, in_own_order, tokens_of_places
from vit.capture.parts.token_places import Boundary, seen_at
from vit.explain import PatchToken, explain

IMAGES = torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
PATCHES = torch.arange(24).view(4, 6)
CLASS_TOKEN = torch.zeros(1, dtype=torch.long)


def with_class_token(patches):
    return torch.cat([CLASS_TOKEN, 1 + patches.flatten()])


SNAKE = PATCHES.clone()
SNAKE[1::2] = SNAKE[1::2].flip(1)
ORDERS = {
    "shuffled": with_class_token(torch.randperm(24, generator=torch.Generator().manual_seed(0))),
    "snake": with_class_token(SNAKE),
    "windows": with_class_token(PATCHES.unflatten(1, (3, 2)).unflatten(0, (2, 2)).transpose(1, 2)),
    "columns first": with_class_token(PATCHES.mT),
    "backwards, class token too": torch.arange(25).flip(0),
    "class token last": torch.arange(25).roll(-1),
    "two neighbours exchanged": torch.tensor([*range(7), 8, 7, *range(9, 25)]),
}


def plain(**kwargs):
    return randomised(ours(image_size=(8, 12), **kwargs)())


def moving(order, before=(1, 2), back=False):
    """Around a model of ours: its tokens are put into this order before some of its layers."""

    def run(vit, images):
        tokens, places = vit.embed(images), torch.arange(25)
        for number, block in enumerate(vit.blocks):
            if number in before:
                tokens, places = tokens[:, order], places[order]
            tokens = block(tokens)
        if back:
            tokens, places = tokens[:, places.argsort()], torch.arange(25)
        return vit.head(vit.norm(tokens)[:, int((places == 0).nonzero())])

    return run


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("before", [(1,), (2,), (1, 2)], ids=str)
@pytest.mark.parametrize("back", [False, True])
def test_attention_is_that_of_the_model_whose_tokens_stay(name, before, back):
    vit = plain()
    model = Around(vit, moving(ORDERS[name], before, back)).eval()
    found, expected = capture_attention(model, IMAGES), capture_attention(vit, IMAGES)
    assert_close(list(found), list(expected), **EXACT)
    assert_close(found.logits, expected.logits, **EXACT)
    slopes, expected_slopes = (torch.autograd.grad(x.logits[:, 3].sum(), x) for x in (found, expected))
    assert_close(slopes, expected_slopes, **EXACT)


@pytest.mark.parametrize("name", ["windows", "backwards, class token too", "class token last"])
@pytest.mark.parametrize("back", [False, True])
def test_maps_are_those_of_the_model_whose_tokens_stay(name, back):
    vit = plain()
    model = Around(vit, moving(ORDERS[name], back=back)).eval()
    assert examine(model, IMAGES).readout.nonzero().tolist() == [[0]]
    for method in ("attention", "rollout", "relevance", "gradient_rollout", "legrad", "occlusion"):
        assert_close(explain(model, IMAGES, method), explain(vit, IMAGES, method), rtol=1e-6, atol=1e-6)


def test_an_order_that_changes_after_the_last_layer_is_undone_in_the_read_out():
    vit = plain()

    def last(vit, images):
        tokens = vit.embed(images)
        for block in vit.blocks:
            tokens = block(tokens)
        return vit.head(vit.norm(tokens.flip(1))[:, -1])

    model = Around(vit, last).eval()
    assert examine(model, IMAGES).readout.nonzero().tolist() == [[0]]
    assert_close(explain(model, IMAGES), explain(vit, IMAGES), **EXACT)


def test_registers_and_pooling_queries_are_followed():
    vit = plain(num_registers=3, pool="map")
    model = Around(vit, None).eval()

    def run(vit, images):
        tokens = vit.embed(images)
        for number, block in enumerate(vit.blocks):
            tokens = block(tokens if number != 1 else tokens.flip(1))
        return vit.forward_head(vit.norm(tokens.flip(1)))

    model.run = run
    assert_close(list(capture_attention(model, IMAGES)), list(capture_attention(vit, IMAGES)), **EXACT)
    assert_close(explain(model, IMAGES), explain(vit, IMAGES), **EXACT)


def sorted_by_size(tokens):
    places = tokens.norm(dim=-1).argsort(dim=1)
    return tokens.gather(1, places[..., None].expand_as(tokens))


MIXED = {
    "sorted by their size": sorted_by_size,
    "means of neighbours": lambda tokens: (tokens + tokens.roll(1, dims=1)) / 2,
    "one token twice": lambda tokens: torch.cat([tokens[:, :-1], tokens[:, 3:4]], dim=1),
}


@pytest.mark.parametrize("name", MIXED)
def test_tokens_that_are_mixed_or_lost_between_layers_are_refused(name):
    def run(vit, images):
        tokens = vit.embed(images)
        for number, block in enumerate(vit.blocks):
            tokens = block(MIXED[name](tokens) if number == 2 else tokens)
        return vit.head(vit.norm(tokens)[:, 0])

    model = Around(plain(), run).eval()
    with pytest.raises(
        ValueError,
        match=r"mixed, exchanged or cut off .*\(values of attention 2\)|an image|mixes tokens .* number 2 of 3",
    ):
        capture_attention(model, IMAGES)
    with pytest.raises(
        ValueError,
        match=r"mixed, exchanged or cut off .*\(values of attention 2\)|an image|mixes tokens .* number 2 of 3",
    ):
        explain(model, IMAGES)


class KeysBackwards(nn.Module):
    """An attention of ours whose keys and values stand in another order than its queries."""

    def __init__(self, attention, turns_queries=False, is_fused=True):
        super().__init__()
        self.attention, self.turns_queries, self.is_fused = attention, turns_queries, is_fused

    def forward(self, tokens, **_):
        q, k, v = self.attention.heads(tokens)
        q, k, v = (q.flip(2), k, v) if self.turns_queries else (q, k.flip(2), v.flip(2))
        if self.is_fused:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        return self.attention.proj(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("layer", [1, 2])
def test_keys_in_another_order_than_their_queries_are_refused(layer):
    vit = plain()
    vit.blocks[layer].attn = KeysBackwards(vit.blocks[layer].attn)
    for refused in (capture_attention, explain):
        with pytest.raises(
            ValueError, match=r"mixed, exchanged or cut off between its attentions|mixes tokens in a way"
        ):
            refused(vit, IMAGES)


@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "by hand"])
@pytest.mark.parametrize("turned", ["keys", "queries"])
@pytest.mark.parametrize("depth", [1, 3])
def test_keys_in_another_order_in_the_first_layer_are_refused_in_the_same_words(depth, turned, is_fused):
    vit, said = plain(depth=depth), []
    vit.blocks[0].attn = KeysBackwards(vit.blocks[0].attn, turned == "queries", is_fused)
    for refusing in (capture_attention, examine):
        with pytest.raises(
            ValueError, match=r"the keys of attention 0 stand in another order than its queries"
        ) as error:
            refusing(vit, IMAGES)
        said.append(str(error.value))
    assert said[0] == said[1]


def test_what_reads_tokens_by_their_place_in_a_later_layer_is_refused():
    model = Around(plain(), moving(ORDERS["windows"])).eval()
    for method in ("gradcam", "value", "value_rollout"):
        with pytest.raises(ValueError, match=r"Around moves its tokens between its layers, .* read by their place"):
            explain(model, IMAGES, method)
    with pytest.raises(ValueError, match="Around moves its tokens between its layers"):
        describe_heads(model, IMAGES)


def test_the_token_of_a_patch_that_moves_is_refused():
    class Backbone(nn.Module):
        def __init__(self):
            super().__init__()
            self.vit = plain(num_classes=0)

        def forward(self, images):
            return self.vit.encode(self.vit.embed(images).contiguous()).flip(1)

    with pytest.raises(ValueError, match="PatchToken moves its tokens between its layers"):
        PatchToken(Backbone().eval(), IMAGES, 1, 2)


def test_a_small_layer_scale_hides_no_order():
    vit = plain(layer_scale=1e-6)
    for name, parameter in vit.named_parameters():
        if ".ls" in name:
            nn.init.constant_(parameter, 1e-6)
    vit = vit.float()
    model = Around(vit, moving(ORDERS["shuffled"])).eval()
    found, expected = (capture_attention(x, IMAGES.float()) for x in (model, vit))
    assert_close(list(found), list(expected), rtol=1e-3, atol=1e-4)


def test_an_order_is_undone_and_redone():
    attn, order = torch.rand(2, 3, 5, 5), torch.tensor([3, 0, 4, 1, 2])
    assert_close(in_first_order(attn, order)[0, 0, 1, 2], attn[0, 0, 0, 4])
    assert_close(in_own_order(in_first_order(attn, order), order), attn)
    assert in_first_order(attn, None) is attn
    assert_close(in_first_order(attn[:, :, :1], order), attn[:, :, :1, order])


class FlippedQueries(Layer):
    """The queries of a layer stand in another order, and what they mix is brought back."""

    def attend(self, tokens):
        q, k, v = self.split(tokens)
        weights = softmax(q.flip(2), k)
        self.note(lambda: weights.flip(2))
        return self.proj(self.join((weights @ v).flip(2)))


class FlippedResults(Layer):
    """What the queries of a layer mix is added to tokens in another order."""

    def attend(self, tokens):
        q, k, v = self.split(tokens)
        weights = softmax(q, k)
        self.note(lambda: weights.flip(2))
        return self.proj(self.join((weights @ v).flip(2)))


@pytest.mark.parametrize("flipped", [FlippedQueries, FlippedResults])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_rows_of_a_layer_in_another_order_are_refused_in_the_last_one_too(place, flipped):
    layers = [flipped() if number == place else Layer() for number in range(3)]
    with pytest.raises(ValueError, match=r"mixed, exchanged or cut off|mixes tokens in a way"):
        capture_attention(invented(*layers), INVENTED_IMAGES)


@pytest.mark.parametrize("order", [slice(None), list(reversed(range(16)))], ids=["in order", "backwards"])
def test_rows_of_the_last_layer_are_found_if_no_module_returns_tokens_after_it(order):
    def run(model, images):
        tokens, layer = model.embed(images), model.layers[0]
        q, k, v = layer.split(tokens)
        added = layer.join((softmax(q, k) @ v)[:, :, order])
        return model.head((tokens + added @ layer.proj.weight.mT)[:, 0])

    model = invented(Layer(), run=run)
    if order == slice(None):
        assert capture_attention(model, INVENTED_IMAGES)[0].shape == (3, 3, 16, 16)
    else:
        with pytest.raises(ValueError, match="queries of attention 0"):
            capture_attention(model, INVENTED_IMAGES)


class Backwards(nn.Module):
    """Tokens in the opposite order."""

    def forward(self, tokens):
        return tokens.flip(1)


@pytest.mark.parametrize("flipped", [False, True])
def test_tokens_that_a_module_moves_after_the_last_layer_are_no_rows_in_another_order(flipped):
    model = invented(Layer(), FlippedResults() if flipped else Layer(), read=lambda tokens: tokens[:, -1])
    model.norm = nn.Sequential(Backwards(), model.norm)
    if flipped:
        with pytest.raises(
            ValueError, match=r"mixed, exchanged or cut off .* \((after the last one|queries of attention 1)\)"
        ):
            capture_attention(model, INVENTED_IMAGES)
    else:
        assert len(capture_attention(model, INVENTED_IMAGES)) == 2


def test_rows_of_a_single_layer_in_another_order_are_refused_for_maps_too():
    model = invented(FlippedResults())
    with pytest.raises(ValueError, match="queries of attention 0"):
        explain(model, INVENTED_IMAGES, "rollout")


def test_rows_of_the_last_layer_that_come_back_with_its_tokens_are_read():
    assert len(capture_attention(invented(run=backwards), INVENTED_IMAGES)) == 3
    with pytest.raises(ValueError, match="queries of attention 0"):
        check_last_rows(invented(FlippedResults()), INVENTED_IMAGES[:1], [0], 16)
    check_last_rows(invented(Layer()), INVENTED_IMAGES[:1], [0], 16)


FOUND = {
    "all": (lambda tokens: tokens, [*range(16)]),
    "shuffled": (lambda tokens: tokens[:, [5, 0, 15, 2]], [5, 0, 15, 2]),
    "the first": (lambda tokens: tokens[:, :1], [0]),
    "the last": (lambda tokens: tokens[:, -1:].tanh(), [15]),
    "with a new one": (lambda tokens: torch.cat([torch.ones_like(tokens[:, :1]), tokens[:, 3:5]], dim=1), [-1, 3, 4]),
    "a mean": (lambda tokens: tokens.mean(dim=1, keepdim=True), None),
    "a little of another": (lambda tokens: tokens[:, 2:3] + 1e-9 * tokens[:, 3:4], None),
    "one twice": (lambda tokens: tokens[:, [3, 3]], None),
    "none": (lambda tokens: torch.ones_like(tokens), None),
}


@pytest.mark.parametrize("scale", [1.0, 1e-7])
@pytest.mark.parametrize("which", FOUND)
def test_tokens_are_found_where_they_stand_after_the_layers(which, scale):
    """Even if the layers change them little, as with LayerScale at its start."""
    arrange, expected = FOUND[which]

    def run(model, images):
        first = model.embed(images)
        tokens = first + scale * (model.through(first) - first)
        return model.read(tokens + 0 * model.kept(arrange(tokens)).sum())

    model = invented(run=run)
    model.kept = nn.Identity()
    watch = partial(seen_at, [Boundary(model.kept, "output")])
    found = tokens_of_places(model, INVENTED_IMAGES[:1], [0, 1, 2], 16, watch)
    assert {place: tokens.tolist() for place, tokens in found.items()} == ({} if expected is None else {0: expected})


def test_each_of_several_places_has_its_own_tokens():
    def run(model, images):
        tokens = model.through(model.embed(images))
        return model.read(tokens + 0 * (model.one(tokens[:, 4:]).sum() + model.other(tokens.mean(1, True)).sum()))

    model = invented(run=run)
    model.one, model.other = nn.Identity(), nn.Identity()
    places = [Boundary(model.other, "output"), Boundary(model.one, "input")]
    found = tokens_of_places(model, INVENTED_IMAGES[:1], [0, 1, 2], 16, partial(seen_at, places))
    assert [*found] == [1]
    assert found[1].tolist() == [*range(4, 16)]
