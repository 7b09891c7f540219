"""Means over the processes of a distributed training, through which gradients flow."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def number_of_processes() -> int:
    """Return how many processes train together."""
    return torch.distributed.get_world_size() if are_several_processes() else 1


def are_several_processes() -> bool:
    """Return whether several processes train together."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def mean_over_processes(values: Tensor) -> Tensor:
    """Return the mean of a tensor over all processes; each process has to call this.

    A loss computed from it is the same in all processes. The mean of their gradients, which DDP takes, is the gradient
    of one process with all images.
    """
    return _Mean.apply(values) if number_of_processes() > 1 else values


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return _mean(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _mean(gradient)


def _mean(values: Tensor) -> Tensor:
    values = values.clone()
    torch.distributed.all_reduce(values)
    return values / number_of_processes()
