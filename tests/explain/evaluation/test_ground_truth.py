"""Scores of maps on images with a known place that decides the label."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vit.explain.evaluation.ground_truth import (
    cells_of_boxes,
    cells_of_quadrants,
    energy_inside,
    halved,
    intersection_over_union,
    mosaics,
    pointing_game,
)

SCORES = [pointing_game, energy_inside, intersection_over_union]
LABELS = torch.tensor([3, 3, 3, 0, 9, 9, 5, 5, 5, 5, 2])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images():
    return torch.rand(len(LABELS), 3, 10, 14, generator=seeded())


def tiles_of(mosaic, rows=5, columns=7):
    return [mosaic[:, r : r + rows, c : c + columns] for r in (0, rows) for c in (0, columns)]


def test_each_tile_is_a_halved_image_of_the_class_it_is_said_to_be(images):
    tiled, _, classes = mosaics(images, LABELS, seeded())
    assert tiled.shape == images.shape
    small = halved(images)
    for mosaic, named in zip(tiled, classes, strict=True):
        for tile, label in zip(tiles_of(mosaic), named, strict=True):
            assert any(torch.equal(tile, other) for other in small[label == LABELS])


def test_each_image_is_asked_for_once_in_the_cell_that_is_said(images):
    tiled, cells, classes = mosaics(images, LABELS, seeded())
    small = halved(images)
    for index, (mosaic, cell) in enumerate(zip(tiled, cells.tolist(), strict=True)):
        assert torch.equal(tiles_of(mosaic)[cell], small[index])
        assert classes[index, cell] == LABELS[index]


@settings(max_examples=25)
@given(seed=st.integers(0, 1000))
def test_the_four_classes_of_a_mosaic_differ(seed):
    _, _, classes = mosaics(torch.zeros(len(LABELS), 1, 2, 2), LABELS, seeded(seed))
    assert all(len(set(named)) == 4 for named in classes.tolist())


def test_cells_and_classes_and_images_are_drawn_evenly():
    labels = torch.arange(6).repeat(1000)
    images = torch.arange(6000.0)[:, None, None, None].expand(6000, 1, 2, 2)
    tiled, cells, classes = mosaics(images, labels, seeded())
    assert (cells.bincount() / 6000 - 1 / 4).abs().max() < 0.02
    assert (classes.flatten().bincount() / 24000 - 1 / 6).abs().max() < 0.01
    assert len(tiled.unique()) == 6000
    others = tiled[tiled != images[:, :, :1, :1]]
    assert len(others) == 18000
    assert len(others.unique()) > 5500  # of 6000 images, 18000 draws miss a share of e^-3


def test_the_same_seed_draws_the_same_mosaics(images):
    torch.manual_seed(1)
    first = mosaics(images, LABELS, seeded(3))
    torch.manual_seed(2)
    again = mosaics(images, LABELS, seeded(3))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert not torch.equal(first[0], mosaics(images, LABELS, seeded(4))[0])


def test_halving_keeps_the_type_and_the_mean_of_even_images():
    assert torch.equal(halved(torch.full((1, 3, 6, 4), 201, dtype=torch.uint8)), torch.full((1, 3, 3, 2), 201).byte())
    assert halved(torch.zeros(1, 1, 4, 4, dtype=torch.float16)).dtype == torch.float16


def test_halving_is_antialiased():
    dot = torch.zeros(1, 1, 16, 16)
    dot[..., 7, 7] = 1
    expected = torch.zeros(8, 8)
    expected[3:5, 3:5] = torch.tensor([[9.0, 3.0], [3.0, 1.0]]) / 64  # a tent over four pixels, 1 3 3 1
    assert torch.allclose(halved(dot)[0, 0], expected)


def test_mosaics_of_three_classes_are_an_error():
    with pytest.raises(ValueError, match=r"^the images are of 3 classes \(1, 4, 6\), and a mosaic needs four"):
        mosaics(torch.zeros(4, 1, 2, 2), torch.tensor([4, 1, 6, 1]))


@pytest.mark.parametrize("size", [(3, 4), (4, 3)])
def test_images_of_odd_sides_are_an_error(size):
    with pytest.raises(ValueError, match=rf"^images of {size[0]} x {size[1]} pixels cannot be halved"):
        mosaics(torch.zeros(4, 1, *size), torch.arange(4))


def test_labels_of_other_images_are_an_error():
    with pytest.raises(ValueError, match=r"^5 images have 4 labels"):
        mosaics(torch.zeros(5, 1, 2, 2), torch.arange(4))


@given(
    row=st.integers(0, 20),
    column=st.integers(0, 30),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    grid=st.tuples(st.sampled_from([1, 3, 7, 21]), st.sampled_from([1, 5, 31])),
)
def test_the_share_of_a_cell_is_that_of_its_pixels(row, column, height, width, grid):
    pixels = torch.zeros(1, 1, 21, 31 * 5)
    pixels[..., row : row + height, 5 * column : 5 * (column + width)] = 1
    expected = torch.nn.functional.avg_pool2d(pixels, (21 // grid[0], 31 * 5 // grid[1]))[:, 0]
    box = torch.tensor([[row, 5 * column, height, 5 * width]])
    assert torch.allclose(cells_of_boxes(box, (21, 31 * 5), grid), expected, atol=1e-6)


def test_cells_need_not_be_whole_pixels():
    shares = cells_of_boxes(torch.tensor([[0, 0, 7, 3]]), image_size=(7, 7), grid=(2, 2))
    assert torch.allclose(shares, torch.tensor([[[6 / 7, 0.0], [6 / 7, 0.0]]]))


def test_boxes_of_another_shape_are_an_error():
    with pytest.raises(ValueError, match=r"^boxes have shape \(4,\): give \(batch, 4\)"):
        cells_of_boxes(torch.zeros(4), (8, 8), (2, 2))


@pytest.mark.parametrize("grid", [(2, 2), (4, 6), (5, 7), (3, 2), (13, 4)])
def test_a_quadrant_is_the_cells_that_its_tile_covers_wholly(grid):
    height, width = 2 * grid[0], 2 * grid[1]
    tiles = torch.tensor([[r, c, height // 2, width // 2] for r in (0, height // 2) for c in (0, width // 2)])
    expected = cells_of_boxes(tiles, (height, width), grid) == 1
    assert torch.equal(cells_of_quadrants(torch.arange(4), grid), expected)


@pytest.mark.parametrize("grid", [(1, 4), (4, 1)])
def test_a_grid_too_coarse_for_quadrants_is_an_error(grid):
    with pytest.raises(ValueError, match=rf"^a grid of {grid[0]} x {grid[1]} has no cell"):
        cells_of_quadrants(torch.tensor([0]), grid)


MASK = torch.tensor([[True, True, False], [False, False, False]])


@pytest.mark.parametrize(
    ("scores", "pointing", "energy", "overlap"),
    [
        ([[1, 1, 0], [0, 0, 0]], 1, 1, 1),
        ([[0, 0, 1], [1, 0, 0]], 0, 0, 0),
        ([[5, 1, 2], [0, 0, 0]], 1, 6 / 8, 1 / 3),
        ([[5, 1, 5], [0, 0, 0]], 1 / 2, 6 / 11, 1 / 3),
        ([[4, 1, 3], [0, 0, -9]], 1, 5 / 8, 1 / 3),
        ([[4, 1, 1], [1, 1, 0]], 1, 5 / 8, 1.25 / 2.75),  # four tie for the second place: a quarter of it is inside
        ([[3, 3, 3], [3, 3, 3]], 2 / 6, 2 / 6, 2 / 10),
        ([[0, 0, 0], [0, 0, 0]], 2 / 6, 2 / 6, 2 / 10),
        ([[-1, -1, -1], [-1, -1, -1]], 2 / 6, 2 / 6, 2 / 10),
        ([[-1, -3, -2], [-5, -5, -5]], 1, 2 / 6, 1 / 3),
        ([[1e-30, 0, 0], [1e-30, 0, 0]], 1 / 2, 1 / 2, 1 / 3),
        ([[1e38, 1e38, 1e38], [1e38, 0, 0]], 1 / 2, 1 / 2, 1 / 3),
    ],
)
def test_scores_by_hand(scores, pointing, energy, overlap):
    maps, masks = torch.tensor([scores], dtype=torch.float32), MASK[None]
    assert pointing_game(maps, masks).tolist() == pytest.approx([pointing])
    assert energy_inside(maps, masks).tolist() == pytest.approx([energy])
    assert intersection_over_union(maps, masks).tolist() == pytest.approx([overlap])


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("grid", [(7, 5), (13, 3), (1, 2)])
def test_a_map_of_the_mask_is_perfect_and_one_of_the_rest_the_worst(score, grid):
    masks = torch.rand(6, *grid, generator=seeded()) < 0.4
    masks[:, 0, 0], masks[:, -1, -1] = True, False
    assert score(masks, masks).tolist() == [1] * 6
    assert score((~masks).float(), masks).max() < 1
    less_than_half = masks.sum(dim=(1, 2)) <= (~masks).sum(dim=(1, 2))
    assert score((~masks).float(), masks)[less_than_half].eq(0).all()


@pytest.mark.parametrize("score", SCORES)
@settings(max_examples=25)
@given(seed=st.integers(0, 1000), scale=st.sampled_from([1e-30, 0.37, 1e20]))
def test_scores_depend_on_no_scale_and_treat_each_map_alone(score, seed, scale):
    maps = torch.randint(-3, 9, (4, 5, 3), generator=seeded(seed)).float()
    masks = torch.rand(4, 5, 3, generator=seeded(seed)) < 0.5
    masks[:, 0, 0] = True
    together = score(maps, masks)
    assert torch.allclose(score(maps * scale, masks), together)
    assert torch.allclose(torch.cat([score(maps[i : i + 1], masks[i : i + 1]) for i in range(4)]), together)
    assert together.min() >= 0
    assert together.max() <= 1


@pytest.mark.parametrize("score", [pointing_game, energy_inside])
def test_constant_maps_get_the_share_of_the_mask(score):
    masks = torch.rand(9, 7, 11, generator=seeded()) < 0.3
    for level in (-2.0, 0.0, 0.1, 5.0):
        assert torch.allclose(score(torch.full((9, 7, 11), level), masks), masks.float().mean(dim=(1, 2)))


@pytest.mark.parametrize("score", SCORES)
def test_a_cell_is_inside_from_a_quarter_on(score):
    maps = torch.tensor([[[0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0]]])
    shares = torch.tensor([[[1.0, 0.25, 0.24]]]).expand(2, 1, 3)
    booleans = torch.tensor([[[True, True, False]]]).expand(2, 1, 3)
    assert torch.equal(score(maps, shares), score(maps, booleans))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64])
def test_maps_may_be_of_any_type(score, dtype):
    maps = torch.tensor([[[4, 1, 3], [0, 0, 2]]])
    assert torch.allclose(score(maps.to(dtype), MASK[None]).float(), score(maps.float(), MASK[None]))


@pytest.mark.parametrize("score", SCORES)
def test_maps_of_another_grid_are_an_error(score):
    with pytest.raises(ValueError, match=r"^maps have shape \(1, 3, 2\) and masks \(1, 2, 3\)"):
        score(torch.zeros(1, 3, 2), MASK[None])


@pytest.mark.parametrize("score", SCORES)
def test_maps_that_are_no_numbers_are_an_error(score):
    with pytest.raises(ValueError, match=r"^the maps hold NaN or infinity"):
        score(torch.full((1, 2, 3), float("nan")), MASK[None])


@pytest.mark.parametrize("score", SCORES)
def test_a_mask_without_a_cell_is_an_error(score):
    with pytest.raises(ValueError, match=r"^mask 1 has no cell inside \(at most 0\.2 of one is covered"):
        score(torch.ones(2, 1, 2), torch.tensor([[[0.3, 0.0]], [[0.2, 0.1]]]))
