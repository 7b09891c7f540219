"""Draws of a step depend on the seed and the step alone."""

from types import SimpleNamespace

import pytest
import torch

from vit.data.loader import MemoryLoader
from vit.data.sampler import BatchSampler
from vit.training.seeded_steps import SeededSteps


def draw(seed: int, epoch: int, batch: int, rank: int) -> float:
    trainer = SimpleNamespace(current_epoch=epoch, global_rank=rank)
    SeededSteps(seed).on_train_batch_start(trainer, None, None, batch)
    return torch.rand(()).item()


def test_draws_differ_with_the_seed_the_epoch_the_batch_and_the_process_and_repeat_with_all_four():
    keys = [(3, 0, 1, 0), (4, 0, 1, 0), (3, 1, 1, 0), (3, 0, 2, 0), (3, 0, 1, 1)]
    draws = [draw(*key) for key in keys]
    assert len(set(draws)) == len(keys)
    assert draws == [draw(*key) for key in keys]


def test_the_seed_of_a_step_is_the_one_of_earlier_versions():
    draw(3, 0, 1, 0)
    assert torch.initial_seed() == 8445513253293614028


@pytest.mark.parametrize("not_counted", [0, 1])  # in a checkpoint after a validation, and after a step
def test_a_resume_with_batches_of_another_size_counts_those_of_the_loader(not_counted):
    images = torch.zeros(13, 1, 2, 2, dtype=torch.uint8)
    loader = MemoryLoader(images, torch.zeros(13).long(), BatchSampler(13, 2, shuffle=True))
    loader.load_state_dict({"served": 2, "shift": 0, "global_size": 3})
    counts = SimpleNamespace(ready=2, started=2, processed=2, completed=2 - not_counted)
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=SimpleNamespace(current=counts)))
    SeededSteps(0).on_train_start(SimpleNamespace(train_dataloader=loader, fit_loop=loop), None)
    assert vars(counts) == {"ready": 3, "started": 3, "processed": 3, "completed": 3 - not_counted}
