"""Overlays: the colour of each pixel, and invalid arguments."""

import subprocess
import sys

import matplotlib
import pytest
import torch
from einops import repeat
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from vit.explain import displayable, overlay
from vit.explain.heatmap import LUMA, color_of


def test_each_cell_covers_exactly_its_pixels_in_one_colour():
    maps = torch.tensor([[[0.0, 1.0, 2.0], [3.0, 4.0, 8.0]]])
    picture = overlay(torch.zeros(1, 1, 4, 15), maps, opacity=1.0)
    assert picture.shape == (1, 3, 4, 15)
    assert_close(picture, repeat(color_of(maps / 8), "b c r s -> b c (r p) (s q)", p=2, q=5))


def test_the_rest_of_a_pixel_is_the_brightness_of_the_image():
    images, maps = torch.rand(2, 3, 6, 4), torch.rand(2, 3, 2)
    grey = sum(weight * images[:, channel] for channel, weight in enumerate(LUMA))
    assert_close(overlay(images, maps, opacity=0.0), repeat(grey, "b h w -> b c h w", c=3))
    between = 0.25 * overlay(images, maps, opacity=1.0) + 0.75 * overlay(images, maps, opacity=0.0)
    assert_close(overlay(images, maps, opacity=0.25), between)


def test_bytes_and_floats_of_an_image_look_the_same():
    images, maps = torch.randint(0, 256, (2, 1, 4, 4), dtype=torch.uint8), torch.rand(2, 2, 2)
    assert_close(overlay(images, maps), overlay(images / 255, maps))


def test_the_colour_map_is_the_published_one():
    shares = torch.linspace(0, 1, 100)[None, None]
    published = torch.tensor(matplotlib.colormaps["inferno"](shares[0, 0].numpy())[:, :3], dtype=torch.float32)
    assert (color_of(shares)[0, :, 0].T - published).abs().max() < 0.04


def test_the_scale_is_that_of_the_image():
    one, other = overlay(torch.zeros(2, 1, 2, 2), torch.tensor([[[1.0, 2.0]], [[4.0, 8.0]]]), opacity=1.0)
    assert_close(one, other)


def test_smoothing_interpolates_between_the_middles_of_patches():
    maps = torch.tensor([[[0.0, 1.0]]])
    flat, smooth = (overlay(torch.zeros(1, 1, 3, 6), maps, opacity=1.0, smooth=smooth) for smooth in (False, True))
    assert len(flat[0, :, 0].unique(dim=-1).T) == 2
    assert len(smooth[0, :, 0].unique(dim=-1).T) > 2
    assert_close(smooth[..., 1], flat[..., 1])
    assert_close(smooth[..., 4], flat[..., 4])


@pytest.mark.parametrize("value", [0.0, 1e-30, 3.0, 1e38])
def test_constant_maps_have_one_colour(value):
    picture = overlay(torch.zeros(1, 1, 4, 4), torch.full((1, 2, 2), value), opacity=1.0)
    assert_close(picture, color_of(torch.full((1, 4, 4), float(value > 0))))


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
        (torch.full((1, 3, 4, 4), torch.nan), torch.ones(1, 2, 2), {}, "nan"),
        (torch.zeros(3, 4, 4), torch.ones(1, 2, 2), {}, r"images\[None\]"),
        (torch.zeros(1, 3, 4, 4), torch.ones(2, 2), {}, r"\(2, 2\)"),
        (torch.zeros(1, 3, 4, 4), torch.ones(2, 2, 2), {}, "1 images have 2 maps"),
        (torch.zeros(1, 3, 4, 4), -torch.ones(1, 2, 2), {}, r"clamp\(min=0\)"),
        (torch.zeros(1, 3, 4, 4), torch.full((1, 2, 2), torch.inf), {}, "infinity"),
        (torch.zeros(1, 3, 4, 4), torch.ones(1, 3, 2), {}, "4 x 4 pixels.*3 x 2 patches"),
        (torch.zeros(1, 3, 4, 4), torch.ones(1, 2, 2), {"opacity": 2}, r"opacity \(2\)"),
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


@pytest.mark.slow
def test_importing_the_packages_imports_no_plotting_library():
    late = ["matplotlib", "captum", "lightning", "PIL", "vit.training"]
    code = f"import sys, vit.explain, vit.analysis; print([name for name in {late} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
