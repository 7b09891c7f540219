"""Places where tokens are read and replaced: modules, norms, one of several times, maps of patches."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.capture.parts.token_places import Boundary, EveryNorm, InSequence, OneTime, tokens_at

TOKENS = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))


def seen_at(place, run):
    seen = []
    with place.seen(seen.append):
        run()
    return seen


def test_every_norm_is_seen_be_it_a_module_or_a_function():
    def run():
        nn.LayerNorm(4)(TOKENS), nn.Linear(4, 4)(TOKENS)
        F.normalize(TOKENS, dim=-1), nn.RMSNorm(4)(TOKENS), TOKENS.softmax(dim=-1)

    expected = [F.layer_norm(TOKENS, (4,)), F.normalize(TOKENS, dim=-1), F.rms_norm(TOKENS, (4,))]
    for seen, norm in zip(seen_at(EveryNorm(), run), expected, strict=True):
        torch.testing.assert_close(seen, norm)


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
    assert place == InSequence(Boundary(module, "output"), layout)
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
