"""Hidden pixels predicted from all others."""

import pytest
import torch
from torch import nn

from vit.masked_image import MaskedImageModel


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = MaskedImageModel(5, (3, 4), embed_dim=24, depth=2, num_heads=3)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.fixture
def pixels():
    return torch.randint(0, 5, (6, 3, 4))


def test_a_prediction_reads_every_pixel_that_is_seen_and_none_that_is_hidden(model, pixels):
    pixels, hidden = pixels[:1], torch.zeros(1, 3, 4, dtype=torch.bool)
    hidden[0, 1] = True
    before = model(pixels, hidden)
    assert before.shape == (1, 3, 4, 5)
    for row in range(3):
        changed = pixels.clone()
        changed[0, row, 2] = (changed[0, row, 2] + 1) % 5
        moved = (model(changed, hidden) != before).any(dim=-1)
        assert moved.all() if row != 1 else not moved.any()


def test_the_logits_are_made_of_its_features_row_by_row(model, pixels):
    model.decoder.head = nn.Linear(24, 6, bias=False)
    logits = model.decoder.head(model.forward_features(pixels))[..., :5]
    expected = model(pixels, torch.zeros_like(pixels, dtype=torch.bool))
    assert torch.equal(logits, torch.stack([expected[:, row, column] for row in range(3) for column in range(4)], 1))


def test_what_is_given_stays_and_only_colours_are_drawn(model, pixels):
    hidden = torch.rand(6, 3, 4) < 0.6
    completed = model.complete(pixels, hidden, steps=3)
    assert torch.equal(completed[~hidden], pixels[~hidden])
    assert 0 <= completed.min() <= completed.max() < 5
    assert torch.equal(model.complete(pixels, torch.zeros_like(hidden)), pixels)


def test_one_step_takes_the_most_probable_colours(model, pixels):
    hidden = torch.rand(6, 3, 4) < 0.6
    completed = model.complete(pixels, hidden, steps=1, temperature=0)
    assert torch.equal(completed[hidden], model(pixels, hidden).argmax(dim=-1)[hidden])


def test_the_surest_pixel_is_filled_in_first_and_read_by_the_next_step(model, pixels):
    hidden = torch.zeros(6, 3, 4, dtype=torch.bool)
    hidden[:, 1, 1:3] = True
    expected, still = pixels.clone(), hidden.clone()
    for _ in range(2):
        logits = model(expected, still).log_softmax(dim=-1)
        value, colour = logits.max(dim=-1)
        surest = value.masked_fill(~still, -torch.inf).flatten(1).argmax(dim=1)
        rows = torch.arange(6)
        expected.flatten(1)[rows, surest] = colour.flatten(1)[rows, surest]
        still.flatten(1)[rows, surest] = False
    # After step 1 of 2, cos(pi / 4) of 2 pixels, rounded down, is still hidden: one.
    assert torch.equal(model.complete(pixels, hidden, steps=2, temperature=0), expected)


def test_completions_are_those_of_the_seed(model, pixels):
    hidden = torch.ones(6, 3, 4, dtype=torch.bool)
    one, same, other = (
        model.complete(pixels, hidden, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [({"steps": 0}, r"steps \(0\) must be a positive"), ({"temperature": -1}, r"temperature \(-1\) must be")],
)
def test_an_impossible_completion_is_refused(model, pixels, kwargs, message):
    with pytest.raises(ValueError, match=message):
        model.complete(pixels, pixels > 2, **kwargs)


@pytest.mark.parametrize("call", ["forward", "complete"])
def test_other_shapes_and_colours_are_refused(model, pixels, call):
    call = getattr(model, call)
    with pytest.raises(ValueError, match=r"pixels have shape \(6, 2, 4\) .*give both as \(batch, 3, 4\)"):
        call(pixels[:, :2], pixels[:, :2] > 2)
    with pytest.raises(ValueError, match="is none of the 5 colours"):
        call(pixels + 5, pixels > 9)
    with pytest.raises(ValueError, match=r"hidden \(6, 3, 4\) of torch.int64: .*hidden in torch.bool"):
        call(pixels, pixels)


def test_the_number_of_a_hidden_pixel_does_not_matter(model, pixels):
    hidden = torch.rand(6, 3, 4) < 0.6
    unknown = pixels.masked_fill(hidden, 99)
    assert torch.equal(model(unknown.to(torch.uint8), hidden), model(pixels, hidden))
    one, other = (model.complete(images, hidden, temperature=0) for images in (unknown, pixels))
    assert torch.equal(one, other)


def test_a_tiny_temperature_takes_the_most_probable_colour(model, pixels):
    hidden = torch.rand(6, 3, 4) < 0.6
    one, other = (model.complete(pixels, hidden, temperature=temperature) for temperature in (1e-40, 0))
    assert torch.equal(one, other)
