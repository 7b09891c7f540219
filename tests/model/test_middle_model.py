"""Middle rows predicted from the rows above and below, and from the middle pixels before them."""

import pytest
import torch
from torch import nn

from vit.model.middle_model import MiddleModel

ROWS, COLUMNS, COLOURS = 5, 3, 7  # row 0 and row 4 are given


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = MiddleModel(COLOURS, (ROWS, COLUMNS), embed_dim=24, depth=2, num_heads=3)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


@pytest.fixture
def pixels():
    return torch.randint(COLOURS, (2, ROWS, COLUMNS), generator=torch.Generator().manual_seed(1))


def changed(pixels, row, column):
    other = pixels.clone()
    other[:, row, column] = (other[:, row, column] + 1) % COLOURS
    return other


def test_a_middle_pixel_depends_on_the_given_rows_and_on_the_middle_pixels_before_it(model, pixels):
    before = model(pixels)
    assert before.shape == (2, ROWS, COLUMNS, COLOURS)
    for row in range(ROWS):
        for column in range(COLUMNS):
            moved = (model(changed(pixels, row, column)) != before).any(dim=-1)[:, 1:4].flatten(1)
            given = row in (0, 4)
            first = 0 if given else (row - 1) * COLUMNS + column + 1
            assert moved[:, first:].all()
            assert not moved[:, :first].any()


def test_the_given_rows_have_no_logits(model, pixels):
    logits = model(pixels)
    assert logits[:, [0, 4]].abs().sum() == 0
    assert logits[:, 1:4].abs().amin(dim=(0, 3)).min() > 0


def test_given_rows_stay_and_the_most_probable_pixels_are_those_of_one_pass(model, pixels):
    drawn = model.complete(pixels, temperature=0)
    assert torch.equal(drawn[:, [0, 4]], pixels[:, [0, 4]])
    assert torch.equal(model(drawn).argmax(dim=-1)[:, 1:4], drawn[:, 1:4])
    assert torch.equal(model.complete(changed(pixels, 2, 1), temperature=0), drawn)  # the middle is not read


def test_random_draws_depend_on_their_generator(model, pixels):
    first, same, other = (model.complete(pixels, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert 0 <= first.min() <= first.max() < COLOURS


def test_no_images_are_completed_to_no_images(model, pixels):
    assert model.complete(pixels[:0]).shape == pixels[:0].shape


def test_images_that_do_not_fit_are_refused(model, pixels):
    with pytest.raises(ValueError, match="an image of 3 rows has no middle between rows: give it at least 4"):
        MiddleModel(COLOURS, (3, 4), embed_dim=24, depth=1, num_heads=3)
    with pytest.raises(ValueError, match=r"pixels have shape \(2, 4, 3\): give whole images of \(5, 3\) pixels"):
        model(pixels[:, :4])
    with pytest.raises(ValueError, match=r"pixel 7 is none of the 7 colours"):
        model(pixels.clamp(min=1).index_fill(1, torch.tensor([2]), COLOURS))
