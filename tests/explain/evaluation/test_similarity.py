"""How alike two maps are: rank correlation and highest patches."""

import pytest
import torch
from scipy.stats import spearmanr
from torch.testing import assert_close

from vit.explain.evaluation.similarity import is_constant, map_correlation, top_overlap

RISING = torch.arange(15.0).view(1, 3, 5)
CONSTANT = torch.ones(1, 3, 5)


def test_rank_correlation_is_spearmans_also_with_ties():
    maps, others = torch.randint(4, (3, 3, 5)).float(), torch.randint(4, (3, 3, 5)).float()
    expected = [spearmanr(one.flatten(), other.flatten()).statistic for one, other in zip(maps, others, strict=True)]
    assert_close(map_correlation(maps, others), torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("constant", [CONSTANT, 0 * CONSTANT])
def test_two_constant_maps_neither_agree_nor_disagree(constant):
    assert map_correlation(constant, constant).isnan()
    assert top_overlap(constant, constant, 2).isnan()


def test_a_constant_map_and_another_one_agree_by_chance():
    assert map_correlation(CONSTANT, RISING).item() == 0
    assert top_overlap(CONSTANT, RISING, 2).item() == pytest.approx(2 / 15)


def test_a_map_is_constant_although_its_last_digits_differ():
    maps = torch.cat([CONSTANT, 0 * CONSTANT, CONSTANT + 1e-7 * RISING, RISING, 1e-12 * RISING])
    assert is_constant(maps).tolist() == [True, True, True, False, False]
    assert map_correlation(maps[2:3], maps[2:3]).isnan()


def test_highest_patches_in_common_are_counted():
    one = torch.tensor([[[9, 8, 7], [0, 1, 2]]]).float()
    other = torch.tensor([[[9, 0, 7], [8, 1, 2]]]).float()
    assert [top_overlap(one, other, count).item() for count in (1, 2, 3)] == pytest.approx([1, 1 / 2, 2 / 3])


def test_random_maps_have_as_many_highest_patches_in_common_as_chance_says():
    maps, others = torch.rand(2, 4000, 3, 5, generator=torch.Generator().manual_seed(0))
    assert top_overlap(maps, others, 4).mean().item() == pytest.approx(4 / 15, abs=0.01)


def test_patches_that_tie_for_the_last_places_share_them():
    tied = torch.tensor([[[9.0, 5.0, 5.0, 0.0]]])
    other = torch.tensor([[[9.0, 5.0, 0.0, 1.0]]])
    assert top_overlap(tied, other, 2).item() == pytest.approx((1 + 1 / 2) / 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_map_in_16_bits_is_constant_only_if_its_patches_are_equal(dtype):
    assert not is_constant(RISING.to(dtype))
    assert not is_constant((1 + 0.05 * RISING).to(dtype))
    assert is_constant(CONSTANT.to(dtype))
    assert map_correlation(RISING.to(dtype), RISING.to(dtype)).item() == pytest.approx(1)
