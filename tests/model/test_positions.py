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
    rotary_angles,
    sinusoidal_positions,
    sinusoidal_positions_2d,
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


def test_heads_whose_width_is_no_multiple_of_four_are_refused():
    check_axial(24, 3)
    with pytest.raises(ValueError, match=r"the width of a head \(12 / 2\) must be a multiple of 4: take embed_dim 8"):
        check_axial(12, 2)


def test_1d_positions_are_those_computed_by_hand():
    # Four channels are two pairs, of frequencies 1 and 1/100.
    angles = torch.tensor([3.0, 0.03])
    positions = sinusoidal_positions(5, 4)
    assert positions.shape == (5, 4)
    assert_close(positions[0], torch.tensor([0.0, 0, 1, 1]))
    assert_close(positions[3], torch.cat([angles.sin(), angles.cos()]))


@pytest.mark.parametrize("shift", [1, 5, 13])
def test_a_shift_of_positions_is_the_same_rotation_everywhere(shift):
    n, pairs = 17, 6
    positions = sinusoidal_positions(n + shift, 2 * pairs).double()
    angles = shift * 10000.0 ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
    cosine, sine = angles.cos().diag(), angles.sin().diag()
    rotation = torch.cat([torch.cat([cosine, sine], 1), torch.cat([-sine, cosine], 1)])
    assert_close(rotation @ rotation.T, torch.eye(2 * pairs, dtype=torch.float64), **EXACT)
    assert_close(positions[shift:], positions[:n] @ rotation.T, rtol=0, atol=1e-5)  # angles are float32


def test_1d_positions_need_an_even_number_of_channels():
    with pytest.raises(ValueError, match=r"dim \(7\) must be even .*: take 8"):
        sinusoidal_positions(3, 7)


def test_2d_positions_are_those_computed_by_hand():
    # 8 channels are 2 for each of: sine and cosine of the row, sine and cosine of the column.
    # Their frequencies are 10000 ** -(0 / 2) = 1 and 10000 ** -(1 / 2) = 1/100.
    positions = sinusoidal_positions_2d((2, 3), 8)
    row, column = torch.tensor([1.0, 0.01]), torch.tensor([2.0, 0.02])
    assert positions.shape == (6, 8)
    assert_close(positions[0], torch.tensor([0.0, 0, 1, 1, 0, 0, 1, 1]))
    assert_close(positions[5], torch.cat([row.sin(), row.cos(), column.sin(), column.cos()]))


def test_2d_positions_count_along_the_rows_first():
    positions = sinusoidal_positions_2d((2, 3), 8)
    rows, columns = positions[:, :4], positions[:, 4:]
    assert_close(rows, rows[[0, 0, 0, 3, 3, 3]], rtol=0, atol=0)
    assert_close(columns, columns[[0, 1, 2, 0, 1, 2]], rtol=0, atol=0)


def test_2d_positions_need_a_multiple_of_four_channels():
    with pytest.raises(ValueError, match=r"embed_dim \(190\) must be a multiple of 4 .*: take 192, or let"):
        sinusoidal_positions_2d((2, 3), 190)


def test_rotated_channels_keep_their_norm_and_turn_by_the_angle_of_their_position():
    x = torch.zeros(1, 1, 3, 4, dtype=torch.float64)
    x[..., 0] = 1  # the first pair of channels is 0 and 2
    angles = rotary_angles(torch.tensor([0, 1, 7]).double(), head_dim=4, theta=100.0)
    turned = rotate(x, angles)[0, 0]
    assert_close(angles[:, 1], torch.tensor([0, 0.1, 0.7]).double())
    assert_close(turned[:, 0], torch.tensor([0.0, 1, 7]).double().cos())
    assert_close(turned[:, 2], torch.tensor([0.0, 1, 7]).double().sin())
    assert turned[:, [1, 3]].abs().max() == 0
    y = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    assert_close(rotate(y, rotary_angles(torch.arange(5).double(), 8)).norm(dim=-1), y.norm(dim=-1))


def test_an_odd_number_of_channels_cannot_be_rotated():
    with pytest.raises(ValueError, match=r"head_dim \(5\) must be even for rotary positions"):
        rotary_angles(torch.arange(3), 5)
