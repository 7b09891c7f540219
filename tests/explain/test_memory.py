"""Peak memory, counted tensor by tensor."""

import torch

from vit.explain.memory import PeakMemory


def test_tensors_alive_together_are_added_up_and_freed_ones_are_not():
    with PeakMemory() as together:
        first, second = torch.zeros(1000), torch.zeros(1000)
    assert together.peak == 8000
    with PeakMemory() as apart:
        first = torch.zeros(1000)
        del first
        second = torch.zeros(1000)
    assert apart.peak == 4000
    assert len(second) == 1000


def test_views_and_earlier_tensors_are_not_counted():
    given = torch.zeros(1000)
    with PeakMemory() as memory:
        given.view(10, 100).mul_(2)
        given[:500].add_(1)
    assert memory.peak == 0


def test_tensors_kept_by_autograd_are_counted():
    weights = torch.zeros(1000, requires_grad=True)
    with PeakMemory() as memory:
        total = weights.exp().exp().sum()  # both exponentials wait for the backward pass
        total.backward()
    assert 8000 <= memory.peak < 13000
