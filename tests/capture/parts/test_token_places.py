"""Places where tokens are read and replaced: modules, norms, one of several times, maps of patches."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from vit.capture.parts.token_places import (
    Boundary,
    InSequence,
    NormResult,
    OneTime,
    changed_at,
    seen_norms,
    some_tokens_at,
    tokens_at,
)
from vit.capture.parts.token_places import seen_at as several_seen

TOKENS = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))


def seen_at(place, run):
    seen = []
    with place.seen(seen.append):
        run()
    return seen


def norms_of(tokens):
    """Five norms, modules and functions, beside functions that are none."""
    nn.Linear(4, 4)(tokens), tokens.softmax(dim=-1)
    return [
        nn.LayerNorm(4)(tokens),
        F.normalize(tokens, dim=-1),
        nn.RMSNorm(4)(tokens),
        nn.GroupNorm(1, 4)(tokens[0]),
        torch.native_layer_norm(tokens, [4], None, None, 1e-5)[0],
    ]


def test_each_norm_is_seen_with_its_number_be_it_a_module_or_a_function():
    seen = {}
    with seen_norms(seen.__setitem__):
        expected = norms_of(TOKENS)
    assert [*seen] == [0, 1, 2, 3, 4]
    torch.testing.assert_close([*seen.values()], expected)


@pytest.mark.parametrize("number", range(5))
def test_one_norm_is_changed_and_the_others_are_not(number):
    with NormResult(number).changed(lambda tokens: 0 * tokens):
        results = norms_of(TOKENS)
    assert [bool(result.any()) for result in results] == [other != number for other in range(5)]


def test_several_places_are_changed_in_one_pass_each_in_its_own_way():
    module = nn.Identity()
    places = [NormResult(1), Boundary(module, "input"), InSequence(NormResult(3), "b d")]
    with changed_at(places, lambda index, tokens: tokens + 10 ** (index + 1)):
        results = [*norms_of(TOKENS), module(TOKENS)]
    moved = [0, 10, 0, 1000, 0, 100]
    for result, usual, much in zip(results, [*norms_of(TOKENS), TOKENS], moved, strict=True):
        torch.testing.assert_close(result, usual + much)


def test_several_places_are_seen_in_one_pass_and_stay_as_they_are():
    seen = {}
    with several_seen([NormResult(0), NormResult(2)], seen.__setitem__):
        results = norms_of(TOKENS)
    torch.testing.assert_close(seen, {0: results[0], 1: results[2]})
    torch.testing.assert_close(results, norms_of(TOKENS))


@pytest.mark.parametrize("number", [0, 1])
def test_one_time_is_changed_and_the_others_are_not(number):
    module = nn.Identity()
    with OneTime(Boundary(module, "output"), number).changed(lambda tokens: 0 * tokens):
        results = [module(TOKENS), module(TOKENS)]
    assert [bool(result.any()) for result in results] == [number != 0, number != 1]


@pytest.mark.parametrize(
    ("layout", "shape"), [("b y x d", (2, 2, 3, 4)), ("b d y x", (2, 4, 2, 3)), ("b d y x", (2, 4, 3, 2))]
)
def test_a_map_of_patches_is_changed_as_tokens(layout, shape):
    module = nn.Identity()
    place = tokens_at(Boundary(module, "output"), shape, {6}, 2)
    assert (place.place, place.layout) == (Boundary(module, "output"), layout)
    numbers = torch.arange(48.0).view(shape)

    def first_alone(tokens):
        assert tokens.shape == TOKENS.shape
        return torch.cat([tokens[:, :1], 0 * tokens[:, 1:]], dim=1)

    with place.changed(first_alone):
        changed = module(numbers)
    first = (slice(None), 0, 0) if layout == "b y x d" else (slice(None), slice(None), 0, 0)
    expected = torch.zeros_like(numbers)
    expected[first] = numbers[first]
    assert torch.equal(changed, expected)


def test_tokens_that_stand_before_images_are_changed_as_others():
    module = nn.Identity()
    place = tokens_at(Boundary(module, "output"), (6, 2, 4), {6}, 2)
    with place.changed(lambda tokens: torch.cat([0 * tokens[:1], tokens[1:]])):
        changed = module(TOKENS.transpose(0, 1))
    assert torch.equal(changed, torch.stack([0 * TOKENS[0], TOKENS[1]], dim=1))


def test_other_numbers_of_tokens_are_no_place():
    place = Boundary(nn.Identity(), "output")
    assert tokens_at(place, (2, 6, 4), {5, 6}, 2) is place
    assert tokens_at(place, (2, 7, 4), {5, 6}, 2) is None
    assert tokens_at(place, (6, 3, 4), {5, 6}, 2) is None
    assert tokens_at(place, (2, 7, 4, 3), {5, 6}, 2) is None


@pytest.mark.parametrize(
    ("layout", "sequence", "sizes"),
    [
        ("b n d", "b n d", {}),
        ("n b d", "b n d", {}),
        ("b d", "b 1 d", {}),
        ("(b n) d", "b n d", {"b": 2}),
        ("(n b) d", "b n d", {"b": 2}),
        ("b y x d", "b (y x) d", {"y": 2}),
    ],
)
def test_some_tokens_are_changed_in_one_of_the_ways_that_their_shape_allows(layout, sequence, sizes):
    tokens = TOKENS[:, :1] if sequence == "b 1 d" else TOKENS
    numbers = rearrange(torch.arange(2.0 * tokens.shape[1]), "(b n) -> b n 1", b=2)
    module, found = nn.Identity(), []
    given = rearrange(tokens, f"{sequence} -> {layout}", **sizes)
    for place in some_tokens_at(Boundary(module, "output"), given.shape, 6, 2):
        with place.changed(lambda seen: seen + numbers):
            found.append(rearrange(module(given), f"{layout} -> {sequence}", **sizes))
    assert any(torch.equal(changed, tokens + numbers) for changed in found)


@pytest.mark.parametrize("shape", [(2, 7, 4), (7, 2, 4), (14, 4), (5, 4), (2, 2, 4, 4), (3, 2, 3, 4), (2,)])
def test_more_tokens_than_there_are_or_other_axes_are_no_way(shape):
    assert some_tokens_at(Boundary(nn.Identity(), "output"), shape, 6, 2) == []


def test_tokens_in_an_object_of_ones_own_are_an_error_that_says_so():
    @dataclass
    class Tokens:
        all: Tensor

    class Wraps(nn.Module):
        def forward(self, tokens):
            return Tokens(tokens)

    module = Wraps()
    with pytest.raises(ValueError, match="Wraps returns a Tokens, in which its tokens are not known"):
        seen_at(Boundary(module, "output"), lambda: module(TOKENS))


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_module_that_is_called_by_keyword_is_a_place_too(side):
    class Doubles(nn.Module):
        def forward(self, tokens, factor=2):
            return factor * tokens

    module = Doubles()
    with Boundary(module, side).changed(lambda tokens: tokens + 1):
        changed = module(tokens=TOKENS, factor=3)
    assert torch.equal(changed, 3 * (TOKENS + 1) if side == "input" else 3 * TOKENS + 1)
