"""Finds outliers, such as the large norms of tokens that a model uses as memory (Darcet et al. 2024)."""

from torch import Tensor

DEVIATIONS = 6.0  # the usual bound for outliers; a fixed bound on the norm would suit only one model


def outliers(values: Tensor) -> Tensor:
    """Mark values more than 6 median absolute deviations above the median of their row: (..., N) -> (..., N).

    >>> import torch
    >>> outliers(torch.tensor([1.0, 2.0, 3.0, 4.0, 50.0]))
    tensor([False, False, False, False,  True])
    """
    median = values.median(dim=-1, keepdim=True).values
    deviation = (values - median).abs().median(dim=-1, keepdim=True).values
    return values > median + DEVIATIONS * deviation
