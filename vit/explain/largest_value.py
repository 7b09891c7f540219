"""How far the largest value of a map stands out from the others, in words: colours alone do not show it."""

from torch import Tensor

FLAT = 1.05  # times the mean; a map whose largest value is below is flat


def stands_out(values: Tensor) -> str:
    """Return how far the largest value of a map (rows, columns) stands out.

    >>> import torch
    >>> stands_out(torch.tensor([[3.0, 1.0]])), stands_out(torch.ones(2, 2)), stands_out(-torch.ones(2, 2))
    ('1.5 times the mean', 'nearly the same value in all patches', 'no patch speaks for the class')
    """
    positive = values.clamp(min=0).float()
    if not positive.max():
        return "no patch speaks for the class" if values.min() < 0 else "all zero"
    times = float(positive.max() / positive.mean())
    return "nearly the same value in all patches" if times < FLAT else f"{times:.2g} times the mean"


def label_largest(values: Tensor) -> str:
    """Return the line below the picture of a map.

    >>> import torch
    >>> label_largest(torch.tensor([[3.0, 1.0]])), label_largest(torch.zeros(2, 2))
    ('largest: 1.5 times the mean', 'all zero')
    """
    said = stands_out(values)
    return f"largest: {said}" if said.endswith("mean") else said
