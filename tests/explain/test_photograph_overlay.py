"""Maps over photographs: where cells lie, and how the picture shows them."""

import pytest
import torch

from vit.explain.heatmap import shade
from vit.explain.photograph_overlay import LINE, UNSEEN, cell_boxes, overlay_photograph

BOX = (10.0, 0.0, 50.0, 40.0)  # of a photograph of 60 x 40 pixels; cells of 20 x 20
MAP = torch.tensor([[0.0, 1.0], [4.0, 2.0]])


def on_grey(share):
    """Return the colour of a share of the largest value on mid-grey, (3, 1, 1)."""
    return shade(torch.full((1, 1, 1, 1), 0.5), torch.full((1, 1, 1), share))[0]


@pytest.fixture
def picture():
    return overlay_photograph(torch.full((1, 40, 60), 0.5), MAP, BOX)


def test_cells_divide_the_box_and_fractions_of_pixels_are_kept():
    boxes = cell_boxes((0.5, 1.0, 8.0, 3.0), (2, 3))
    assert boxes.tolist() == [
        [[0.5, 1, 3, 2], [3, 1, 5.5, 2], [5.5, 1, 8, 2]],
        [[0.5, 2, 3, 3], [3, 2, 5.5, 3], [5.5, 2, 8, 3]],
    ]


def test_a_cell_has_one_flat_colour_over_all_its_pixels(picture):
    for row, top in enumerate((0, 20)):
        for column, left in enumerate((10, 30)):
            inside = picture[:, top + 1 : top + 19, left + 1 : left + 19]
            torch.testing.assert_close(inside, on_grey(MAP[row, column].item() / 4).expand(3, 18, 18))


def test_what_the_model_did_not_see_is_dimmed_and_has_no_colour(picture):
    for outside in (picture[..., :10], picture[..., 50:]):
        torch.testing.assert_close(outside, torch.full((3, 40, 10), UNSEEN * 0.5))


def test_lines_stand_on_the_first_pixels_of_cells_and_are_lighter(picture):
    dark, pale = on_grey(0.0)[:, 0, 0], on_grey(1.0)[:, 0, 0]
    for line in (picture[:, 0, 11:29], picture[:, 1:19, 10]):
        torch.testing.assert_close(line, ((1 - LINE) * dark + LINE)[:, None].expand(3, 18))
    torch.testing.assert_close(picture[:, 20, 11:29], ((1 - LINE) * pale + LINE)[:, None].expand(3, 18))


def test_each_edge_between_cells_has_one_line_whether_it_lies_in_a_pixel_or_between_two():
    picture = overlay_photograph(torch.zeros(1, 600, 800), torch.zeros(16, 16), (151.0, 0.0, 751.0, 600.0))
    cell = picture[0, 20, 170]
    down, across = (picture[0, :, 170] > cell).nonzero()[:, 0], (picture[0, 20] > cell).nonzero()[:, 0]
    assert down.tolist() == [int(37.5 * edge) for edge in range(16)]
    assert across.tolist() == [151 + int(37.5 * edge) for edge in range(16)]


def test_large_pictures_have_wider_lines_and_small_cells_none():
    wide = overlay_photograph(torch.zeros(1, 1600, 1600), torch.zeros(2, 2), (0.0, 0.0, 1600.0, 1600.0))
    assert (wide[0, 100] > wide[0, 100].min() + 0.1).nonzero()[:, 0].tolist() == [0, 799, 800, 1599]
    small = overlay_photograph(torch.zeros(1, 14, 14), torch.zeros(2, 2), (0.0, 0.0, 14.0, 14.0))
    assert small.unique(dim=1).shape[1] == 1


def test_cells_of_a_fraction_of_a_pixel_and_beyond_the_photograph_are_drawn():
    picture = overlay_photograph(torch.zeros(3, 5, 7, dtype=torch.uint8), torch.rand(16, 16), (-2.0, 1.0, 9.0, 4.0))
    assert picture.isfinite().all()
    assert (picture[:, 0] == 0).all()


SEEN = torch.tensor([[-1, 0, 0, 1], [-1, 2, 2, 3], [-1, -1, -1, -1], [-1, -1, -1, -1]])  # of an image of 4 x 4 pixels


def test_uneven_cells_lie_where_the_model_sees_them():
    boxes = cell_boxes(BOX, (2, 2), SEEN)
    assert boxes.tolist() == [[[20, 0, 40, 10], [40, 0, 50, 10]], [[20, 10, 40, 20], [40, 10, 50, 20]]]
    picture = overlay_photograph(torch.full((1, 40, 60), 0.5), MAP, BOX, SEEN)
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        left, top, right, bottom = boxes[row, column].int().tolist()
        inside = picture[:, top + 1 : bottom - 1, left + 1 : right - 1]
        torch.testing.assert_close(inside, on_grey(MAP[row, column].item() / 4).expand_as(inside))
    for outside in (picture[..., :20], picture[..., 50:], picture[:, 20:]):
        torch.testing.assert_close(outside, torch.full_like(outside, UNSEEN * 0.5))


def test_values_that_have_no_colour_are_refused():
    with pytest.raises(ValueError, match="the smallest value of the maps is -1"):
        overlay_photograph(torch.zeros(1, 8, 8), -torch.ones(2, 2), (0.0, 0.0, 8.0, 8.0))
