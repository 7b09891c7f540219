"""Images that are written pixel by pixel."""

import pytest
import torch
from torch import nn

from vit.model.image_gpt import ImageGPT


@pytest.fixture
def painter():
    torch.manual_seed(0)
    model = ImageGPT(5, (3, 4), embed_dim=24, depth=2, num_heads=3)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def test_a_pixel_is_predicted_from_those_before_it(painter):
    pixels = torch.randint(5, (1, 3, 4))
    before = painter(pixels)
    assert before.shape == (1, 3, 4, 5)
    pixels[0, 1, 2] = (pixels[0, 1, 2] + 1) % 5
    same = (painter(pixels) == before).all(dim=-1).flatten()
    assert same.tolist() == [True] * 7 + [False] * 5  # its own prediction is the seventh


def test_its_features_are_the_states_that_the_pixels_are_predicted_from(painter):
    pixels = torch.randint(5, (2, 3, 4))
    logits = painter.forward_features(pixels) @ painter.decoder.token_embed.weight.T
    torch.testing.assert_close(logits[..., :5].reshape(2, 3, 4, 5), painter(pixels))


def test_completing_keeps_what_is_known_and_writes_only_colours(painter):
    rows = torch.randint(5, (20, 1, 4))
    images = painter.complete(rows, generator=torch.Generator().manual_seed(0))
    assert images.shape == (20, 3, 4)
    assert torch.equal(images[:, :1], rows)
    assert 0 <= images.min() <= images.max() < 5
    assert painter.complete(rows[:, :0]).shape == (20, 3, 4)


def test_the_most_probable_completion_repeats_the_largest_logit(painter):
    image = painter.complete(torch.randint(5, (1, 1, 4)), temperature=0.0)
    assert torch.equal(painter(image).argmax(dim=-1)[:, 1:], image[:, 1:])


def test_completions_are_those_of_the_seed(painter):
    rows = torch.randint(5, (2, 1, 4))
    one, same, other = (painter.complete(rows, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_one_colour_to_draw_from_is_the_most_probable(painter):
    rows = torch.randint(5, (3, 1, 4))
    assert torch.equal(painter.complete(rows, top_k=1), painter.complete(rows, temperature=0.0))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_pixels_may_be_whole_numbers_of_any_size(painter, dtype):
    pixels = torch.randint(5, (2, 3, 4))
    assert torch.equal(painter(pixels.to(dtype)), painter(pixels))
    assert torch.equal(painter.complete(pixels.to(dtype)), pixels)  # nothing is left to write


def test_no_image_gives_no_image(painter):
    assert painter.complete(torch.zeros(0, 1, 4, dtype=torch.long)).shape == (0, 3, 4)


def test_options_of_the_decoder_are_passed_on():
    assert ImageGPT(5, (3, 4), 24, 1, 3, positions="rope").decoder.pos_embed is None


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (torch.zeros(1, 4, 3), r"pixels have shape \(1, 4, 3\): give rows of images of \(3, 4\) pixels"),
        (torch.zeros(1, 12), r"pixels have shape \(1, 12\)"),
        (torch.zeros(1, 2, 4), r"pixels have shape \(1, 2, 4\): give whole images of \(3, 4\) pixels"),
        (torch.full((1, 3, 4), 5), r"pixel 5 is none of the 5 colours \(0 to 4\)"),
        (torch.full((1, 3, 4), -1), r"pixel -1 is none of the 5 colours \(0 to 4\)"),
    ],
)
def test_pixels_that_do_not_fit_are_refused(painter, pixels, message):
    with pytest.raises(ValueError, match=message):
        painter(pixels.long())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_shares_of_white_are_no_colours(painter, dtype):
    message = f"pixels are {dtype}: give the numbers of their colours, whole numbers below 5"
    with pytest.raises(ValueError, match=message):
        painter(torch.ones(1, 3, 4, dtype=dtype))


def test_a_prefix_is_refused_as_its_pixels_would_see_themselves():
    with pytest.raises(ValueError, match=r"prefix \(3\) would let pixels of ImageGPT see themselves: leave it out, or"):
        ImageGPT(5, (3, 4), embed_dim=24, depth=1, num_heads=3, prefix=3)


def test_an_exported_program_predicts_the_same(painter):
    pixels = torch.randint(5, (2, 3, 4))
    program = torch.export.export(painter, (pixels,)).module()
    torch.testing.assert_close(program(pixels), painter(pixels))
