"""Models that find or count their tokens by the order of these: dropped tokens would let others take their places."""

import pytest
import torch
from torch.testing import assert_close

from tests.architectures import EXACT
from tests.capture.test_invented_models import IMAGES, WIDTH, by, invented, logits_of
from vit.explain import explain
from vit.explain.evaluation.faithfulness import removal_curves
from vit.explain.maps.fewer_tokens import can_drop
from vit.explain.maps.methods import signed_map
from vit.explain.maps.subject import Subject

BEHIND = 2  # registers that stand behind the patches


def with_registers(model, images):
    """Class token, patches, then two registers, which the positions of the model know too."""
    tokens = model.embed(images)
    return torch.cat([tokens[:, :1], tokens[:, 1 + BEHIND :], tokens[:, 1 : 1 + BEHIND]], dim=1)


def reading(read, embed=None, step=None):
    """A model whose first layer gets the tokens of ``embed``, and whose head reads ``read(tokens)``."""

    def run(model, images):
        tokens = model.through((embed or type(model).embed)(model, images), *([step] if step else []))
        return model.head(read(model.norm(tokens)))

    return invented(run=run, prefix=3 if embed else 1)


def of_all_behind_the_first(tokens):
    return tokens[:, 1:].mean(dim=1)


def fifteen_last(tokens):
    return tokens[:, -15:].mean(dim=1)


def between_class_token_and_registers(tokens):
    return tokens[:, 1:-BEHIND].mean(dim=1)


def fifteen_behind_the_first(tokens):
    return tokens[:, 1:16].mean(dim=1)


SPELLINGS = [
    (reading(of_all_behind_the_first), reading(fifteen_last)),
    (
        reading(between_class_token_and_registers, with_registers),
        reading(fifteen_behind_the_first, with_registers),
    ),
]


@pytest.mark.parametrize(("by_the_ends", "by_number"), SPELLINGS, ids=["class token", "class token and registers"])
def test_a_head_that_counts_its_tokens_is_refused_as_another_token_would_take_a_place(by_the_ends, by_number):
    assert_close(by_number(IMAGES), by_the_ends(IMAGES))
    assert can_drop(Subject(by_the_ends, IMAGES))
    with pytest.raises(ValueError, match="or it finds or counts tokens by their order: choose 'occlusion'"):
        explain(by_number, IMAGES, "token_drop")
    with pytest.raises(ValueError, match="or it finds or counts tokens by their order"):
        removal_curves(Subject(by_number, IMAGES), torch.rand(3, 3, 5))


def test_registers_behind_the_patches_stay_what_they_are():
    """The map against tokens that are left out by hand."""
    model = reading(between_class_token_and_registers, with_registers)
    subject = Subject(model, IMAGES, 2)
    tokens = with_registers(model, IMAGES)

    def score(tokens):
        return model.head(between_class_token_and_registers(model.norm(model.through(tokens))))[:, 2]

    losses = [score(tokens) - score(torch.cat([tokens[:, :n], tokens[:, n + 1 :]], dim=1)) for n in range(1, 16)]
    assert_close(signed_map("token_drop", subject).flatten(1), torch.stack(losses, dim=1).detach(), **EXACT)


def test_prompts_that_each_layer_puts_behind_a_fixed_number_of_tokens_are_refused():
    prompts = torch.randn(1, BEHIND, WIDTH, generator=torch.Generator().manual_seed(0)).double()

    def step(keep):
        def with_prompts(_, layer, tokens):
            return layer(torch.cat([tokens, prompts.expand(len(tokens), -1, -1)], dim=1))[:, keep]

        return with_prompts

    def read(tokens):
        return tokens[:, 0]

    by_number, by_the_ends = reading(read, step=step(slice(16))), reading(read, step=step(slice(-BEHIND)))
    assert_close(by_number(IMAGES), by_the_ends(IMAGES))
    assert not can_drop(Subject(by_number, IMAGES))


TYPES = torch.randn(18, WIDTH, generator=torch.Generator().manual_seed(1)).double()
TYPES[1:16] = TYPES[1]
MASK = torch.zeros(18, 18).double()
MASK[1:16, 16:] = -2.0  # patches look less at registers


def test_what_is_added_by_the_place_of_a_token_is_seen_if_registers_stand_behind_the_patches():
    def step(number, layer, tokens):
        return layer(tokens + TYPES[: tokens.shape[1]] if number == 1 else tokens)

    assert not can_drop(Subject(reading(between_class_token_and_registers, with_registers, step), IMAGES))


@pytest.mark.parametrize("masked", [False, True])
def test_a_mask_by_the_place_of_a_token_is_seen_if_registers_stand_behind_the_patches(masked):
    def weights(_, q, k):
        count = q.shape[-2]
        return (logits_of(q, k) + masked * MASK[:count, :count]).softmax(dim=-1)

    model = reading(between_class_token_and_registers, with_registers)
    model.layers[1].mix = by(weights)
    assert can_drop(Subject(model, IMAGES)) != masked
