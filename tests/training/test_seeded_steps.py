"""Random draws of a step as a function of the seed and the step."""

from types import SimpleNamespace

import torch

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
