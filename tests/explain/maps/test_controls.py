"""Maps of the image alone, by hand."""

import pytest
import torch
from torch.testing import assert_close

from vit import VisionTransformer
from vit.explain.maps import Subject, signed_map


@pytest.fixture(scope="module")
def model():
    return VisionTransformer((6, 10), 2, embed_dim=12, depth=1, num_heads=3, num_classes=7).eval()


def map_of(control, model, image):
    return signed_map(control, Subject(model, image))[0]


def test_edges_are_where_brightness_changes_and_not_at_the_border(model):
    image = torch.zeros(1, 3, 6, 10)
    image[..., 5:] = 1.0  # the slope of Sobel is 4 in the two columns at the step, in each of three channels
    expected = torch.zeros(3, 5)
    expected[:, 2] = 4 * 3**0.5
    assert_close(map_of("edges", model, image), expected)


def test_edges_have_no_direction(model):
    image = torch.randn(1, 3, 6, 10)
    assert_close(map_of("edges", model, image.flip(-1)), map_of("edges", model, image).flip(-1))
    assert_close(map_of("edges", model, image.flip(-2)), map_of("edges", model, image).flip(-2))
    assert_close(map_of("edges", model, -image), map_of("edges", model, image))
    step = torch.zeros(1, 3, 6, 10)
    step[:, :, 3:] = 1.0
    assert_close(map_of("edges", model, step)[1], torch.full((5,), 4 * 3**0.5))


def test_deviation_is_the_distance_from_the_mean_colour_which_is_0(model):
    image = torch.zeros(1, 3, 6, 10)
    image[:, :, 2, 4] = torch.tensor([2.0, -3.0, 6.0])  # length 7, one of four pixels
    expected = torch.zeros(3, 5)
    expected[1, 2] = 7 / 4
    assert_close(map_of("deviation", model, image), expected)


def test_ink_is_what_differs_from_the_background_of_the_image_smoothed_over_the_neighbours(model):
    image = torch.full((1, 3, 6, 10), 5.0)  # the background, whatever the mean colour is
    image[:, :, 2:4, 4:6] -= 16.0
    expected = torch.zeros(3, 5)
    expected[:, 1:4] = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]])
    assert_close(map_of("ink", model, image), expected)
    assert_close(map_of("ink", model, -3 * image), 3 * expected)


def test_of_single_pieces_and_four_together_ink_marks_the_four(model):
    image = torch.zeros(1, 3, 6, 10)
    image[:, :, :4, :4] = 1.0
    image[:, :, 4:, 8:] = 1.0
    found = map_of("ink", model, image)
    assert (found[:2, :2] > found.flatten().sort().values[-5]).all()


def test_an_image_of_one_colour_has_no_edges_and_no_ink(model):
    image = torch.full((1, 3, 6, 10), 0.7)
    for control in ("edges", "ink"):
        assert_close(map_of(control, model, image), torch.zeros(3, 5))


def test_a_single_piece_of_ink_counts_as_much_at_the_border_as_inside(model):
    inside, corner = torch.zeros(2, 1, 3, 6, 10)
    inside[:, :, 2:4, 4:6] = corner[:, :, :2, :2] = 1.0
    assert map_of("ink", model, corner)[0, 0] == map_of("ink", model, inside)[1, 2]
