"""What all objectives share, in a process that is one of several."""

from types import SimpleNamespace

import pytest
import torch

from vit.objectives import ImageCompleter


@pytest.fixture
def module():
    """A small objective."""
    return ImageCompleter(8, 1, palette_size=4, embed_dim=12, depth=1, num_heads=3)


def among(module, **reduced):
    """Put the objective among processes: what ``reduce`` gives, by the name of the operation."""
    strategy = SimpleNamespace(reduce=lambda tensor, reduce_op: reduced[reduce_op](tensor))
    module._trainer = SimpleNamespace(strategy=strategy)


def test_a_loss_is_over_the_mean_count_of_all_processes(module):
    losses, counted = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([True, False, True])
    assert module.mean_of_counted(losses, counted) == 2.5
    # The other process counts six losses: on average there are four, and DDP takes the mean of both gradients.
    among(module, mean=lambda count: (count + 6) / 2)
    assert module.mean_of_counted(losses, counted) == 5 / 4


def test_the_sums_of_an_evaluation_are_those_of_all_processes(module, monkeypatch):
    among(module, sum=lambda tensor: tensor + 10)
    sums = [torch.tensor(1.0), torch.tensor([2.0, 3.0])]
    logged = {}
    module.evaluation = SimpleNamespace(sums=lambda: sums, loss=0.5, bits_per_pixel=0.7)
    monkeypatch.setattr(module, "log_dict", lambda values, **_: logged.update(values))
    module._log_evaluation("val")
    assert [tensor.tolist() for tensor in sums] == [11, [12, 13]]
    assert logged == {"val_bits_per_pixel": 0.7, "val_loss": 0.5}
