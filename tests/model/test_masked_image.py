"""Hidden pixels predicted from all others."""

import pytest
import torch
from torch import nn

from vit.model.masked_image import MaskedImageModel


def random_model(seed, std):
    torch.manual_seed(seed)
    model = MaskedImageModel(5, (3, 4), embed_dim=24, depth=2, num_heads=3)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=std)
    return model.eval()


@pytest.fixture
def model():
    return random_model(seed=0, std=0.3)


@pytest.fixture
def pixels():
    return torch.randint(0, 5, (6, 3, 4))


def test_the_asked_share_of_each_image_is_hidden_and_at_least_one_pixel(model):
    hidden = model.hide(torch.zeros(5, 3, 4), torch.tensor([0.0, 0.25, 0.5, 0.99, 1.0]))
    assert hidden.shape == (5, 3, 4)
    assert hidden.sum(dim=(1, 2)).tolist() == [1, 3, 6, 12, 12]


def test_an_evaluation_counts_the_same_half_of_each_image_and_a_training_another_share_of_each(model, pixels):
    counted = model.scored_pixels(pixels)
    assert counted.sum(dim=(1, 2)).tolist() == [6] * 6
    assert (counted == counted[:1]).all()
    assert torch.equal(counted, model.scored_pixels(pixels))
    assert len(model.scored_in_training(pixels).sum(dim=(1, 2)).unique()) > 1


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


def test_pixels_are_filled_in_by_any_order_and_read_by_the_next_step():
    model = random_model(seed=1, std=0.6)  # in which pixels depend on each other
    pixels = torch.randint(0, 5, (100, 3, 4))
    hidden = torch.zeros(100, 3, 4, dtype=torch.bool)
    hidden[:, 1, 1:3] = True

    def filled(*columns):
        expected, still = pixels.clone(), hidden.clone()
        for column in columns:
            expected[:, 1, column] = model(expected, still).argmax(dim=-1)[:, 1, column]
            still[:, 1, column] = False
        return expected

    one, other = filled(1, 2), filled(2, 1)
    assert not torch.equal(one, other)
    met = set()
    for seed in range(8):  # after step 1 of 2, cos(pi / 4) of 2 pixels, rounded down, is still hidden: one
        generator = torch.Generator().manual_seed(seed)
        found = model.complete(pixels, hidden, steps=2, temperature=0, generator=generator)
        for image, *orders in zip(found, one, other, strict=True):
            equal = tuple(torch.equal(image, order) for order in orders)
            assert any(equal)
            met.add(equal)
    assert {(True, False), (False, True)} <= met


def test_few_pixels_are_filled_in_at_first_and_many_at_the_end(model, pixels, monkeypatch):
    passes = []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda pixels, hidden: passes.append(hidden) or forward(pixels, hidden))
    model.complete(pixels, torch.ones(6, 3, 4, dtype=torch.bool), steps=4)
    # 12 cos(pi t / 8), rounded down
    assert [hidden.sum(dim=(1, 2)).unique().tolist() for hidden in passes] == [[12], [11], [8], [4]]


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


def test_features_of_other_shapes_and_colours_are_refused(model, pixels):
    for other in (pixels[:, :2], pixels.mT, pixels[0]):
        with pytest.raises(ValueError, match=r"pixels have shape .*: give whole images of \(3, 4\) pixels"):
            model.forward_features(other)
    with pytest.raises(ValueError, match=r"pixel 5 is none of the 5 colours \(0 to 4\)"):  # 5 is a hidden pixel
        model.forward_features(torch.full((1, 3, 4), 5))


def test_the_pixels_of_a_model_that_has_diverged_are_refused(model, pixels):
    model.decoder.blocks[0].mlp.fc1.weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match="6 of 6 sequences have a score of NaN: the model has diverged"):
        model.complete(pixels, pixels > 2, temperature=0)


def test_the_number_of_a_hidden_pixel_does_not_matter(model, pixels):
    hidden = torch.rand(6, 3, 4) < 0.6
    unknown = pixels.masked_fill(hidden, 99)
    assert torch.equal(model(unknown.to(torch.uint8), hidden), model(pixels, hidden))
    one, other = (model.complete(images, hidden, temperature=0) for images in (unknown, pixels))
    assert torch.equal(one, other)


def test_nothing_is_drawn_with_dropout(model, pixels):
    model.train()
    for draw in (lambda: model.complete(pixels, pixels > 2), lambda: model.redraw(pixels)):
        with pytest.raises(ValueError, match=r"the model is in training mode, .* draws: call \.eval\(\) first"):
            draw()
