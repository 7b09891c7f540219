import pytest
import torch
from einops import rearrange

from vit.capture.experiments.token_layouts import LAYOUTS, by_token, is_flattened_map, other_layout

TOKENS = torch.arange(5 * 15 * 4.0).reshape(5, 15, 4)  # of five copies


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "k n d"])
def test_tokens_in_another_layout_are_found_and_read_back(layout):
    rows = {"y": 3} if "y" in layout else {}
    result = rearrange(TOKENS, f"{LAYOUTS[layout]} -> {layout}", **rows)
    assert other_layout(result, 5, {15}) == layout
    assert torch.equal(rearrange(result, f"{layout} -> {LAYOUTS[layout]}"), TOKENS)


@pytest.mark.parametrize("shape", [(4, 12, 3, 5), (5, 12, 3, 4), (15, 4, 12), (5, 15), (5, 2, 3, 4, 5)])
def test_other_results_have_no_layout(shape):
    assert other_layout(torch.zeros(shape), 5, {15}) is None


def test_a_map_that_is_flattened_keeps_its_channels_first():
    assert is_flattened_map(torch.zeros(5, 4, 3, 5), torch.zeros(5, 4, 15))
    assert not is_flattened_map(torch.zeros(5, 4, 3, 5), torch.zeros(5, 15, 4))
    assert not is_flattened_map(None, torch.zeros(5, 4, 15))


def test_heads_and_copies_that_share_an_axis_are_parted():
    heads = rearrange(TOKENS, "k n (h d) -> (k h) n d", h=2)
    assert torch.equal(by_token(heads, 5, {15}, heads_first=False), rearrange(heads, "(k h) n d -> k n (h d)", k=5))
    assert by_token(torch.zeros(5, 8, 4), 5, {15}, heads_first=False) is None


def test_as_many_tokens_as_channels_are_told_apart_by_what_moves():
    plain = torch.rand(15, 15, dtype=torch.float64)
    half = (torch.arange(15) % 2 == 0)[:, None]
    copies = torch.stack([plain, plain + half, plain + ~half, plain + 1, plain])  # a token moves with one half
    assert torch.equal(by_token(copies, 5, {15}, heads_first=False), copies)
    assert torch.equal(by_token(copies.mT, 5, {15}, heads_first=False), copies)
