"""Values of every measure, computed by hand on a grid that is not square."""

import math

import pytest
import torch

from vit.analysis import measures

GRID, PATCH = (3, 5), (8, 4)
PATCHES = 15


def identity(n):
    return torch.eye(n)[None, None]


def uniform(n):
    return torch.full((1, 1, n, n), 1 / n)


def looking(down, right, grid=GRID):
    """Attention of each patch to the one at this offset, or to itself at the border: (1, 1, N, N)."""
    rows, columns = grid
    attn = torch.zeros(rows * columns, rows * columns)
    for i in range(rows * columns):
        row, column = i // columns + down, i % columns + right
        inside = 0 <= row < rows and 0 <= column < columns
        attn[i, row * columns + column if inside else i] = 1
    return attn[None, None]


def with_class_token(attn, to_class):
    """Add a class token that gets this share of each patch, and attends to itself: (B, H, N, N) -> (B, H, 1+N, 1+N)."""
    whole = torch.zeros(*attn.shape[:2], attn.shape[2] + 1, attn.shape[3] + 1)
    whole[..., 0, 0] = 1
    whole[..., 1:, 0] = to_class
    whole[..., 1:, 1:] = attn * (1 - to_class)
    return whole


def test_attention_of_tokens_to_themselves_has_distance_and_entropy_0_and_full_rank():
    attn = identity(PATCHES)
    assert measures.attention_distance(attn, GRID, PATCH).item() == 0
    assert measures.attention_entropy(attn).item() == 0
    assert measures.attention_entropy(torch.ones(1, 1, 1, 1)).item() == 0
    assert measures.confidence(attn).item() == measures.self_mass(attn).item() == 1
    assert measures.sink_score(attn).item() == 1
    values = measures.singular_values(attn)
    assert measures.effective_rank(values).item() == pytest.approx(PATCHES)
    assert measures.stable_rank(values).item() == pytest.approx(PATCHES)


def test_uniform_attention_is_the_reference_of_distance_and_entropy_and_has_rank_one():
    attn = uniform(PATCHES)
    reference = measures.uniform_distance(GRID, PATCH)
    assert measures.attention_distance(attn, GRID, PATCH).item() == pytest.approx(reference)
    assert measures.attention_entropy(attn).item() == pytest.approx(1)
    assert measures.confidence(attn).item() == pytest.approx(1 / PATCHES)
    assert measures.self_mass(attn).item() == pytest.approx(1 / PATCHES)
    values = measures.singular_values(attn)
    assert measures.effective_rank(values).item() == pytest.approx(1, abs=1e-5)
    assert measures.stable_rank(values).item() == pytest.approx(1)
    torch.testing.assert_close(measures.column_mass(attn), torch.ones(1, 1, PATCHES))


@pytest.mark.parametrize(("offset", "pixels"), [((0, 1), 4 * 12 / 15), ((1, 0), 8 * 10 / 15), ((2, 3), 20 * 2 / 15)])
def test_distance_is_in_pixels_of_either_side(offset, pixels):
    # 12, 10 and 2 of the 15 patches have such a patch; the others attend to themselves.
    assert measures.attention_distance(looking(*offset), GRID, PATCH).item() == pytest.approx(pixels)


def test_the_distance_of_uniform_attention_is_half_a_side():
    assert measures.uniform_distance((50, 50), (1, 1)) == pytest.approx(0.5214 * 50, rel=1e-3)
    assert measures.uniform_distance((1, 3), (7, 6)) == pytest.approx((4 * 6 + 2 * 12) / 9)


def test_attention_to_the_class_token_shortens_the_distance_only_if_it_is_not_renormalised():
    attn = with_class_token(looking(0, 1), to_class=0.75)
    assert measures.attention_distance(attn, GRID, PATCH, 1).item() == pytest.approx(3.2)
    assert measures.attention_distance(attn, GRID, PATCH, 1, renormalise=False).item() == pytest.approx(0.8)
    blind = with_class_token(looking(0, 1), to_class=1.0)
    assert measures.attention_distance(blind, GRID, PATCH, 1).item() == 0


def test_prefix_mass_is_that_of_tokens_on_either_side_of_the_patches():
    attn = with_class_token(uniform(PATCHES), to_class=0.25)
    mass = measures.prefix_mass(attn, GRID, 1)
    torch.testing.assert_close(mass[0, 0], torch.tensor([1.0] + [0.25] * PATCHES))
    behind = measures.prefix_mass(attn.flip(-1, -2), GRID, 0)
    torch.testing.assert_close(behind[0, 0], mass[0, 0].flip(0))


def test_a_sink_gets_many_times_its_share():
    attn = torch.zeros(1, 1, 7, 7)
    attn[..., 3] = 1
    assert measures.sink_score(attn).item() == 7
    torch.testing.assert_close(measures.column_mass(attn)[0, 0], 7 * torch.eye(7)[3])


def score_of(attn):
    return measures.positional_score(attn.mean(0), attn.square().sum((-1, -2)).mean(0), len(attn))


def test_the_positional_score_is_the_share_common_to_all_images():
    same = torch.rand(1, 2, 5, 5).repeat(3, 1, 1, 1)
    torch.testing.assert_close(score_of(same), torch.ones(2))
    # Two images without common attention.
    opposite = torch.stack([torch.eye(2), 1 - torch.eye(2)])[:, None]
    torch.testing.assert_close(score_of(opposite), torch.zeros(1))


def test_the_positional_score_does_not_depend_on_the_number_of_images():
    torch.manual_seed(0)
    attn = (3 * torch.randn(4000, 1, 5, 5)).softmax(dim=-1)
    of_few = torch.stack([score_of(few) for few in attn.split(2)]).mean().item()
    assert of_few == pytest.approx(score_of(attn).item(), abs=0.01)


@pytest.mark.parametrize("offset", [(0, 0), (0, -1), (0, 1), (-1, 0), (1, 1)])
def test_a_head_of_a_single_offset_has_an_offset_score_of_one(offset):
    attn = looking(*offset).repeat(2, 1, 1, 1)
    score, offsets = measures.offset_score(measures.offset_counts(attn, GRID), GRID)
    assert (score.item(), offsets) == (1, [offset])


def test_offsets_that_few_patches_have_are_left_out():
    # All attend to the first patch: each offset occurs once, and (0, 0) is one of 15; (-2, -4) is one of one.
    attn = torch.zeros(1, 1, PATCHES, PATCHES)
    attn[..., 0] = 1
    score, _ = measures.offset_score(measures.offset_counts(attn, GRID), GRID)
    assert score.item() == pytest.approx(1 / 8)  # (-1, -1): one of the 8 patches that have such a neighbour


def test_offset_counts_and_maps_leave_the_prefix_out_and_put_the_patch_itself_in_the_middle():
    attn = with_class_token(looking(0, 1), to_class=0.9)
    counts = measures.offset_counts(attn, GRID, 1)
    assert counts.shape == (1, 5, 9)
    assert (counts[0, 2, 5], counts[0, 2, 4], counts.sum()) == (12, 3, 15)
    of_offset = measures.offset_map(attn[0], GRID, 1)
    assert of_offset[0, 2, 5].item() == pytest.approx(16 * 0.1)
    assert of_offset[0, 2, 4].item() == pytest.approx(16 * 0.1 * 3 / 15)


def test_the_offset_map_of_uniform_attention_is_flat():
    torch.testing.assert_close(measures.offset_map(uniform(PATCHES)[0], GRID), torch.ones(1, 5, 9))


def test_ranks_count_the_dimensions_of_a_spectrum():
    values = torch.tensor([4.0, 2.0, 2.0, 0.0])
    assert measures.effective_rank(values).item() == pytest.approx(2**1.5)  # entropy of 1/2, 1/4, 1/4
    assert measures.stable_rank(values).item() == pytest.approx(24 / 16)


def test_singular_values_are_those_of_torch():
    matrices = torch.randn(2, 3, 7, 5)
    expected = torch.linalg.svdvals(matrices.double())
    torch.testing.assert_close(measures.singular_values(matrices)[..., :5], expected)


def test_redundancy_is_the_largest_cosine_with_another_head():
    first, second = torch.eye(3), torch.ones(3, 3)
    cosine = 3 / (math.sqrt(3) * 3)
    found = measures.redundancy(torch.stack([first, second, 2 * second]))
    torch.testing.assert_close(found, torch.tensor([cosine, 1, 1]))
    assert measures.redundancy(first[None]).isnan().all()


def test_a_grid_larger_than_the_attention_is_refused():
    with pytest.raises(ValueError, match=r"\(1, 1, 15, 15\) is too small for 1 prefix tokens and a grid of 3 x 5"):
        measures.attention_distance(uniform(PATCHES), GRID, PATCH, num_prefix_tokens=1)


def test_entropy_is_that_of_each_image_and_head():
    attn = torch.rand(2, 3, 5, 7, dtype=torch.float64)
    attn = attn / attn.sum(dim=-1, keepdim=True)
    expected = -(attn * attn.log()).sum(dim=-1).mean(dim=-1) / math.log(7)
    torch.testing.assert_close(measures.attention_entropy(attn), expected)
