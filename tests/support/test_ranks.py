"""Spearman's rank correlation."""

import torch
from scipy.stats import spearmanr
from torch.testing import assert_close

from vit.support.ranks import rank_correlation


def test_the_correlation_of_each_row_is_scipys_also_with_ties():
    first, second = torch.randint(5, (3, 2, 17)).float(), torch.randint(5, (3, 2, 17)).float()
    expected = [
        [spearmanr(*rows).statistic for rows in zip(*both, strict=True)] for both in zip(first, second, strict=True)
    ]
    assert_close(rank_correlation(first, second), torch.tensor(expected, dtype=torch.float32))


def test_equal_values_order_nothing():
    assert rank_correlation(torch.ones(7), torch.arange(7.0)).item() == 0


def test_a_value_that_is_no_number_has_no_rank():
    values = torch.tensor([[1.0, torch.nan, 2.0], [1.0, 3.0, 2.0]])
    others = torch.arange(3.0).expand(2, 3)
    assert rank_correlation(values, others).isnan().tolist() == [True, False]
    assert rank_correlation(others, values).isnan().tolist() == [True, False]
