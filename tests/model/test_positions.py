"""Positions on another grid, against the libraries, and rotary positions on a grid, against timm's."""

from typing import get_args

import pytest
import scipy.ndimage
import torch
import torch.nn.functional as F
from einops import rearrange
from timm.layers import RotaryEmbeddingCat
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3, apply_rot_embed_cat
from torch.testing import assert_close

from tests.architectures import EXACT
from vit.attention.functional import rotate
from vit.model.positions import (
    RESIZINGS,
    Interpolation,
    axial_angles,
    check_axial,
    indexed_axial_angles,
    resize_positions,
    resizing_matrix,
)

GRIDS = pytest.mark.parametrize(
    ("old_grid", "new_grid"),
    [
        ((3, 5), (7, 11)),  # larger
        ((7, 11), (3, 5)),  # smaller
        ((3, 11), (7, 5)),  # larger and smaller
        ((3, 5), (5, 3)),  # as many tokens, another shape
        ((6, 6), (4, 9)),
    ],
)


@GRIDS
@pytest.mark.parametrize("prefix", [0, 5])
def test_resized_positions_equal_those_of_timm(old_grid, new_grid, prefix):
    positions = torch.randn(1, prefix + old_grid[0] * old_grid[1], 13)
    expected = resample_abs_pos_embed(positions, list(new_grid), list(old_grid), num_prefix_tokens=prefix)
    assert_close(resize_positions(positions, old_grid, new_grid), expected, rtol=1e-5, atol=1e-5)


def interpolated(positions, old_grid, **options):
    """Positions (1, N, D) on another grid by torch's interpolation."""
    grid = rearrange(positions, "1 (h w) d -> 1 d h w", h=old_grid[0])
    return rearrange(F.interpolate(grid, **options), "1 d h w -> 1 (h w) d")


@GRIDS
@pytest.mark.parametrize(
    ("interpolation", "options"),
    [
        ("bicubic", {"mode": "bicubic", "antialias": True}),  # timm
        ("bilinear", {"mode": "bilinear", "antialias": True}),  # timm
        ("transformers", {"mode": "bicubic", "align_corners": False}),
        ("torchvision", {"mode": "bicubic", "align_corners": True}),
        ("google", {"mode": "bilinear", "align_corners": True}),  # scipy.ndimage.zoom of order 1
    ],
)
def test_positions_are_resized_as_by_the_library_of_that_name(old_grid, new_grid, interpolation, options):
    positions = torch.randn(1, old_grid[0] * old_grid[1], 13, dtype=torch.float64)
    expected = interpolated(positions, old_grid, size=new_grid, **options)
    # torch computes the weights of antialiased kernels in float32.
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if "antialias" in options else EXACT
    assert_close(resize_positions(positions, old_grid, new_grid, interpolation), expected, **tolerance)


@GRIDS
def test_dinov2_adds_a_tenth_to_the_size_before_it_computes_the_scale(old_grid, new_grid):
    positions = torch.randn(1, old_grid[0] * old_grid[1], 13, dtype=torch.float64)
    scales = tuple((new + 0.1) / old for old, new in zip(old_grid, new_grid, strict=True))
    expected = interpolated(positions, old_grid, scale_factor=scales, mode="bicubic")
    assert_close(resize_positions(positions, old_grid, new_grid, "dinov2"), expected, **EXACT)


def test_google_resizes_as_scipy_zooms():
    positions = torch.randn(1, 35, 3, dtype=torch.float64)
    zoomed = scipy.ndimage.zoom(positions.reshape(5, 7, 3).numpy(), (11 / 5, 4 / 7, 1), order=1)
    expected = torch.from_numpy(zoomed).reshape(1, 44, 3)
    assert_close(resize_positions(positions, (5, 7), (11, 4), "google"), expected, **EXACT)


@pytest.mark.parametrize("interpolation", get_args(Interpolation))
@pytest.mark.parametrize("size", [1, 2, 7])
def test_each_way_of_resizing_is_the_identity_at_the_same_size(interpolation, size):
    matrix = resizing_matrix(size, size, RESIZINGS[interpolation], torch.zeros((), dtype=torch.float64))
    # DINOv2 computes another scale at the same size, which its own code avoids by a branch.
    assert_close(matrix, torch.eye(size, dtype=torch.float64), rtol=0, atol=0.1 if interpolation == "dinov2" else 0)


@pytest.mark.parametrize("interpolation", get_args(Interpolation))
def test_programs_leave_positions_of_the_same_grid_as_they_are_without_a_branch(interpolation, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    positions = torch.randn(1, 2 + 15, 13, dtype=torch.float64)
    assert_close(resize_positions(positions, (3, 5), (3, 5), interpolation), positions, **EXACT)


@pytest.mark.parametrize("interpolation", get_args(Interpolation))
@pytest.mark.parametrize(("old", "new"), [(1, 5), (5, 1), (3, 11), (11, 3), (13, 14)])
def test_constant_positions_stay_constant(interpolation, old, new):
    matrix = resizing_matrix(old, new, RESIZINGS[interpolation], torch.zeros((), dtype=torch.float64))
    assert_close(matrix.sum(dim=1), torch.ones(new, dtype=torch.float64), **EXACT)


def test_an_unknown_way_of_resizing_is_refused():
    with pytest.raises(ValueError, match="unknown pos_embed_interpolation 'nearest': choose 'bicubic', 'bilinear'"):
        resize_positions(torch.zeros(1, 4, 2), (2, 2), (3, 3), "nearest")


def test_resizing_computes_in_float32_under_autocast():
    positions = torch.randn(1, 15, 13)
    with torch.autocast("cpu", torch.bfloat16):
        resized = resize_positions(positions, (3, 5), (7, 11))
    assert_close(resized, resize_positions(positions, (3, 5), (7, 11)), rtol=0, atol=0)


def test_positions_of_the_same_grid_are_returned_unchanged():
    positions = torch.randn(1, 2 + 15, 13)
    assert resize_positions(positions, (3, 5), (3, 5)) is positions


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_resizing_keeps_the_dtype_and_rounds_once_at_the_end(dtype):
    positions = torch.randn(1, 2 + 15, 13, dtype=dtype)
    resized = resize_positions(positions, (3, 5), (7, 11))
    expected = resize_positions(positions.double(), (3, 5), (7, 11))
    assert_close(resized, expected.to(dtype))
    assert resized.dtype == dtype


def test_resized_positions_pass_gradients():
    positions = torch.randn(1, 2 + 6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda p: resize_positions(p, (2, 3), (3, 2)), positions)


HEAD_DIM = 12
LIKE = torch.zeros((), dtype=torch.float64)


@pytest.mark.parametrize("grid", [(3, 5), (1, 1), (7, 2)])
def test_axial_angles_are_those_of_dinov3(grid):
    theirs = RotaryEmbeddingDinoV3(HEAD_DIM, temperature=100.0, rotate_half=True)
    queries = torch.randn(2, 3, grid[0] * grid[1], HEAD_DIM)
    expected = apply_rot_embed_cat(queries, theirs.get_embed(shape=list(grid)), half=True)
    assert_close(rotate(queries, axial_angles(grid, grid, HEAD_DIM, queries)), expected, rtol=1e-5, atol=1e-5)


def test_axial_angles_by_hand():
    angles = axial_angles((2, 1), (2, 1), 4, LIKE)  # one frequency, 2 pi; rows at -1/2 and 1/2, the column at 0
    expected = torch.tensor([[-torch.pi, 0.0], [torch.pi, 0.0]], dtype=torch.float64)
    assert_close(angles, expected, **EXACT)


@pytest.mark.parametrize("grid", [(3, 5), (1, 1), (7, 2)])
def test_indexed_axial_angles_are_those_of_eva_with_its_channels_in_another_order(grid):
    theirs = RotaryEmbeddingCat(HEAD_DIM, in_pixels=False, ref_feat_shape=[3, 5])
    queries, keys = torch.randn(2, 2, 3, grid[0] * grid[1], HEAD_DIM)
    embedded = theirs.get_embed(shape=list(grid))
    q, k = (apply_rot_embed_cat(x, embedded) for x in (queries, keys))
    # EVA turns neighbouring channels, and these pairs of channels lie half a head apart.
    queries, keys = (rearrange(x, "b h n (d two) -> b h n (two d)", two=2) for x in (queries, keys))
    angles = indexed_axial_angles(grid, (3, 5), HEAD_DIM, queries)
    assert_close(rotate(queries, angles) @ rotate(keys, angles).mT, q @ k.mT, rtol=1e-5, atol=1e-5)


def test_products_of_rotated_tokens_depend_on_the_offset_alone():
    queries = torch.randn(1, 1, 1, HEAD_DIM, dtype=torch.float64).expand(-1, -1, 25, -1)
    rotated = rotate(queries, axial_angles((5, 5), (5, 5), HEAD_DIM, LIKE))
    products = rearrange(rotated @ rotated.mT, "1 1 (y x) (v u) -> y x v u", y=5, v=5)
    assert_close(products[0, 1, 2, 4], products[2, 0, 4, 3], **EXACT)
    assert (products[0, 1, 2, 4] - products[0, 1, 2, 3]).abs() > 1e-6


def test_heads_whose_width_is_no_multiple_of_four_are_refused():
    check_axial(24, 3)
    with pytest.raises(ValueError, match=r"the width of a head \(18 / 3\) must be a multiple of 4: take embed_dim 12"):
        check_axial(18, 3)
