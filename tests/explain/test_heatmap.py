"""Overlays: the colour of each pixel, and invalid arguments."""

import pytest
import torch
from einops import repeat
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from vit.explain import displayable, overlay
from vit.explain.heatmap import LUMA, TO_CONES, TO_RGB, UNSEEN, shade


def lightness_and_colour(picture):
    """Read pixels of sRGB: (B, 3, H, W) -> lightness (B, H, W), and hue and chroma as a point (B, 2, H, W)."""
    linear = torch.where(picture <= 0.04045, picture / 12.92, ((picture + 0.055) / 1.055) ** 2.4).double()
    to_cones, to_rgb = (torch.tensor(matrix, dtype=torch.float64).inverse() for matrix in (TO_CONES, TO_RGB))
    cones = torch.einsum("ck,bkhw->bchw", to_rgb, linear)
    oklab = torch.einsum("ck,bkhw->bchw", to_cones, cones.sign() * cones.abs() ** (1 / 3))
    return oklab[:, 0], oklab[:, 1:]


def read_back(picture):
    """Return the share of the largest value that each pixel shows, from its hue and chroma alone."""
    shares = torch.linspace(0, 1, 1001)
    (known,) = lightness_and_colour(shade(torch.full((1, 1, 1, 1001), 0.5), shares[None, None]))[1]
    distances = torch.cdist(lightness_and_colour(picture)[1].permute(0, 2, 3, 1).flatten(0, 2), known[:, 0].T)
    return shares[distances.argmin(dim=1)].reshape(picture.shape[0], *picture.shape[2:])


def test_values_are_read_back_from_the_pixels_on_dark_and_on_bright_places():
    images, maps = torch.rand(3, 3, 6, 10), torch.rand(3, 3, 2)
    shown = read_back(overlay(images, maps))
    largest = maps.amax(dim=(1, 2), keepdim=True)
    assert_close(shown, repeat(maps / largest, "b r s -> b (r p) (s q)", p=2, q=5), rtol=0, atol=0.002)


def test_the_brightness_of_the_image_moves_nothing_but_the_lightness():
    images, maps = torch.rand(2, 3, 6, 4), torch.rand(2, 3, 2)
    dark, bright = (lightness_and_colour(overlay(images * 0 + level, maps)) for level in (0.0, 1.0))
    own = lightness_and_colour(overlay(images, maps))
    grey = sum(weight * images[:, channel] for channel, weight in enumerate(LUMA))
    assert_close(own[1], dark[1], rtol=0, atol=1e-6)
    assert_close((own[0] - dark[0]) / (bright[0] - dark[0]), grey.double(), rtol=1e-4, atol=1e-4)


def test_colours_are_told_apart_and_no_pixel_leaves_the_range_of_screens():
    grey, shares = torch.meshgrid(torch.linspace(0, 1, 101), torch.linspace(0, 1, 101), indexing="ij")
    picture = shade(grey[None, None], shares[None])
    assert picture.min() >= 0
    assert picture.max() <= 1
    colours = lightness_and_colour(picture)[1][0, :, 0]
    apart = torch.cdist(colours.T, colours.T)[~torch.eye(101, dtype=torch.bool)]
    assert apart.min() > 1e-3


def test_zero_is_grey_and_the_largest_value_yellow():
    nothing, most = shade(torch.full((1, 1, 1, 2), 0.5), torch.tensor([[[0.0, 1.0]]]))[0, :, 0].T
    assert_close(nothing, nothing.mean().expand(3), rtol=0, atol=1e-5)
    assert most[0] > most[1] > 2 * most[2]


def test_bytes_and_floats_of_an_image_look_the_same():
    images, maps = torch.randint(0, 256, (2, 1, 4, 4), dtype=torch.uint8), torch.rand(2, 2, 2)
    assert_close(overlay(images, maps), overlay(images / 255, maps))


TWO = torch.tensor([[[1.0, 2.0]], [[4.0, 8.0]]])


@pytest.mark.parametrize("scale", ["image", "common"])
def test_no_images_give_no_pictures(scale):
    assert overlay(torch.rand(0, 3, 4, 4), torch.rand(0, 2, 2), scale=scale).shape == (0, 3, 4, 4)


def test_a_picture_is_no_part_of_a_graph():
    assert not overlay(torch.rand(1, 3, 4, 4), torch.rand(1, 2, 2, requires_grad=True)).requires_grad


def test_the_scale_is_that_of_the_image():
    one, other = overlay(torch.zeros(2, 1, 2, 2), TWO)
    assert_close(one, other)


def test_a_common_scale_is_that_of_the_largest_value_of_all_images():
    shown = read_back(overlay(torch.zeros(2, 1, 1, 2), TWO, scale="common"))
    assert_close(shown, TWO / 8, rtol=0, atol=0.002)


def test_smoothing_interpolates_between_the_middles_of_patches():
    maps = torch.tensor([[[0.0, 1.0]]])
    flat, smooth = (overlay(torch.zeros(1, 1, 3, 6), maps, smooth=smooth) for smooth in (False, True))
    assert len(flat[0, :, 0].unique(dim=-1).T) == 2
    assert len(smooth[0, :, 0].unique(dim=-1).T) > 2
    assert_close(smooth[..., 1], flat[..., 1])
    assert_close(smooth[..., 4], flat[..., 4])


CELLS = torch.tensor([[-1, 0, 0, 1], [-1, 0, 0, 1], [-1, 2, 2, 3], [-1, -1, -1, -1]])


def test_cells_are_drawn_where_they_are_and_unseen_pixels_are_dark_and_grey():
    maps = torch.tensor([[[0.0, 0.25], [0.5, 1.0]]])
    picture = overlay(torch.full((1, 3, 4, 4), 0.8), maps, cells=CELLS)
    seen = CELLS >= 0
    assert_close(read_back(picture)[0][seen], maps.flatten()[CELLS[seen]], rtol=0, atol=0.002)
    assert_close(picture[0][:, ~seen], torch.full((3, 7), UNSEEN * 0.8))


def test_smoothing_stays_within_the_cells():
    maps = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    picture = overlay(torch.full((1, 3, 4, 4), 0.8), maps, cells=CELLS, smooth=True)
    assert_close(picture[0][:, CELLS < 0], torch.full((3, 7), UNSEEN * 0.8))
    inside = overlay(torch.full((1, 3, 3, 3), 0.8), maps, smooth=True)
    assert_close(picture[..., :3, 1:], inside)


def test_cells_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"cells of shape \(4, 4\) from -1 to 3 do not fit .* 4 x 4 .* 1 x 2 patches"):
        overlay(torch.rand(1, 3, 4, 4), torch.rand(1, 1, 2), cells=CELLS)
    with pytest.raises(ValueError, match=r"cells of shape \(4, 4\) from -1 to 3 do not fit images of 8 x 4 pixels"):
        overlay(torch.rand(1, 3, 8, 4), torch.rand(1, 2, 2), cells=CELLS)


@pytest.mark.parametrize("value", [0.0, 1e-30, 3.0, 1e38])
def test_constant_maps_have_one_colour(value):
    picture = overlay(torch.zeros(1, 1, 4, 4), torch.full((1, 2, 2), value))
    assert_close(read_back(picture), torch.full((1, 4, 4), float(value > 0)))


@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(1, 3),
    channels=st.integers(1, 4),
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    patch=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    smooth=st.booleans(),
)
def test_any_shape_gives_colours_in_range(batch, channels, grid, patch, smooth):
    size = (grid[0] * patch[0], grid[1] * patch[1])
    picture = overlay(torch.rand(batch, channels, *size), torch.rand(batch, *grid), smooth=smooth)
    assert picture.shape == (batch, 3, *size)
    assert picture.min() >= 0
    assert picture.max() <= 1


@pytest.mark.parametrize(
    ("images", "maps", "options", "words"),
    [
        (torch.full((1, 3, 4, 4), 1.5), torch.ones(1, 2, 2), {}, r"1.5.*displayable\(images, mean, std\)"),
        (torch.full((1, 3, 4, 4), -0.5), torch.ones(1, 2, 2), {}, "-0.5"),
        (torch.full((1, 3, 4, 4), torch.nan), torch.ones(1, 2, 2), {}, "NaN"),
        (torch.zeros(3, 4, 4), torch.ones(1, 2, 2), {}, r"images\[None\]"),
        (torch.zeros(1, 3, 4, 4), torch.ones(2, 2), {}, r"\(2, 2\)"),
        (torch.zeros(1, 3, 4, 4), torch.ones(2, 2, 2), {}, "1 images have 2 maps"),
        (torch.zeros(1, 3, 4, 4), -torch.ones(1, 2, 2), {}, r"clamp\(min=0\)"),
        (torch.zeros(1, 3, 4, 4), torch.full((1, 2, 2), torch.inf), {}, "infinity"),
        (torch.zeros(1, 3, 4, 4), torch.ones(1, 3, 2), {}, "4 x 4 pixels.*3 x 2 patches"),
        (
            torch.zeros(1, 3, 4, 4),
            torch.ones(1, 2, 2),
            {"scale": "row"},
            "unknown scale 'row': choose 'image' or 'common'",
        ),
    ],
)
def test_maps_and_images_that_do_not_fit_are_refused(images, maps, options, words):
    with pytest.raises(ValueError, match=words):
        overlay(images, maps, **options)


def test_displayable_undoes_the_normalisation():
    images, mean, std = torch.rand(2, 3, 4, 4), [0.1, 0.2, 0.3], [0.5, 1.0, 2.0]
    normalised = (images - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert_close(displayable(normalised, mean, std), images)


def test_displayable_without_statistics_scales_each_image_from_0_to_1():
    shown = displayable(torch.stack([torch.randn(3, 4, 4), torch.zeros(3, 4, 4)]))
    assert (shown[0].min().item(), shown[0].max().item(), shown[1].abs().max().item()) == (0, 1, 0)
    with pytest.raises(ValueError, match="give both"):
        displayable(torch.zeros(1, 3, 4, 4), mean=[0.5, 0.5, 0.5])
