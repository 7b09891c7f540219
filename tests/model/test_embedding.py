"""Patch embedding."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.layers import resample_patch_embed
from torch.testing import assert_close

from vit.model.embedding import PatchEmbed, resize_patches, to_pair

EXACT = {"rtol": 1e-9, "atol": 1e-9}
BOTH_SIDES = pytest.mark.parametrize(
    ("image_size", "patch_size"),
    [((6, 35), (2, 5)), ((35, 6), (5, 2)), (21, 7), ((9, 15), 3), (10, (2, 5))],
)


def test_one_number_is_both_rows_and_columns():
    assert to_pair(5) == (5, 5)
    assert to_pair((5, 7)) == to_pair([5, 7]) == (5, 7)


def test_numbers_of_numpy_are_sizes():
    assert json.dumps([to_pair(np.int64(5)), to_pair(np.array([5, 7]))]) == "[[5, 5], [5, 7]]"


@BOTH_SIDES
def test_embedding_equals_the_strided_convolution_with_the_same_weights(image_size, patch_size):
    embed = PatchEmbed(image_size, patch_size, in_channels=3, embed_dim=11).double()
    images = torch.randn(2, 3, *to_pair(image_size), dtype=torch.float64, requires_grad=True)
    convolved = F.conv2d(images, embed.proj.weight, embed.proj.bias, stride=to_pair(patch_size))
    expected = convolved.flatten(2).mT
    tokens = embed(images)
    assert tokens.shape == (2, embed.num_patches, 11)
    assert_close(tokens, expected, **EXACT)

    inputs = (images, embed.proj.weight, embed.proj.bias)
    direction = torch.randn_like(tokens)
    gradients = torch.autograd.grad(expected, inputs, direction)
    assert_close(torch.autograd.grad(tokens, inputs, direction), gradients, **EXACT)


OVERLAPPING = pytest.mark.parametrize(
    ("image_size", "patch_size", "patch_stride"), [((6, 35), (4, 7), (2, 5)), (21, 5, 3), ((6, 10), (6, 5), (2, 5))]
)


@OVERLAPPING
def test_overlapping_patches_are_centred_on_their_cells(image_size, patch_size, patch_stride):
    embed = PatchEmbed(image_size, patch_size, in_channels=3, embed_dim=11, patch_stride=patch_stride).double()
    (rows, columns), (p, q), (m, n) = to_pair(image_size), to_pair(patch_size), to_pair(patch_stride)
    image = torch.randn(1, 3, rows, columns, dtype=torch.float64)
    tokens = embed(image)
    assert embed.grid_size == embed.grid_of(rows, columns) == (rows // m, columns // n)
    assert tokens.shape == (1, embed.num_patches, 11)
    for number in range(embed.num_patches):
        row, column = divmod(number, columns // n)
        top, left = row * m - (p - m) // 2, column * n - (q - n) // 2
        # Beyond the border, the nearest pixel of the border.
        seen_rows = torch.arange(top, top + p).clamp(0, rows - 1)
        seen_columns = torch.arange(left, left + q).clamp(0, columns - 1)
        patch = image[0][:, seen_rows][:, :, seen_columns]
        expected = (embed.proj.weight * patch).sum(dim=(1, 2, 3)) + embed.proj.bias
        assert_close(tokens[0, number], expected, **EXACT)


def test_token_i_is_the_patch_at_row_i_div_columns_and_column_i_mod_columns():
    embed = PatchEmbed((6, 35), (2, 5), in_channels=1, embed_dim=1)
    torch.nn.init.constant_(embed.proj.weight, 1 / 10)  # the mean of the 10 pixels
    torch.nn.init.zeros_(embed.proj.bias)
    rows, columns = torch.arange(6) // 2, torch.arange(35) // 5
    image = 10.0 * rows[:, None] + columns  # pixels of the patch at (row, column) are 10 row + column
    expected = [0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14, 15, 16, 20, 21, 22, 23, 24, 25, 26]
    assert_close(embed(image[None, None])[0, :, 0], torch.tensor(expected, dtype=torch.float32))
    assert embed.grid_size == (3, 7)
    assert embed.num_patches == 21


def test_padded_images_end_in_zeros_at_the_right_and_at_the_bottom():
    embed = PatchEmbed((6, 35), (2, 5), in_channels=3, embed_dim=11, pad_images=True)
    images = torch.randn(2, 3, 5, 31)
    padded = torch.zeros(2, 3, 6, 35)
    padded[..., :5, :31] = images
    assert_close(embed(images), embed(padded), rtol=0, atol=0)
    assert embed.grid_of(5, 31) == embed.grid_of(6, 35) == (3, 7)
    assert PatchEmbed((5, 31), (2, 5), 3, 11, pad_images=True).grid_size == (3, 7)


@pytest.mark.parametrize("size", [(7, 7), (2, 2), (3, 5), (8, 4)])
def test_patches_are_resized_as_in_timm(size):
    weight = torch.randn(11, 3, 4, 4, dtype=torch.float64)
    theirs = resample_patch_embed(weight, list(size))  # inverts in float32
    assert_close(resize_patches(weight, size), theirs, rtol=1e-4, atol=1e-5)


def test_an_enlarged_patch_is_embedded_as_the_patch():
    patch, weight = torch.randn(3, 5, 5, dtype=torch.float64), torch.randn(2, 3, 5, 5, dtype=torch.float64)
    enlarged = F.interpolate(patch[None], size=(11, 7), mode="bicubic", antialias=True)[0]
    embedded = (resize_patches(weight, (11, 7)) * enlarged).sum(dim=(1, 2, 3))
    assert_close(embedded, (weight * patch).sum(dim=(1, 2, 3)))


def test_half_precision_stays_half_precision():
    assert resize_patches(torch.randn(2, 3, 4, 4, dtype=torch.float16), 2).dtype == torch.float16
