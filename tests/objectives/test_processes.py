"""Means over processes: their value, and the gradient that DDP averages."""

import os

import torch

from tests.commands.test_distributed import free_port
from tests.forked import forked
from vit.objectives.processes import mean_over_processes, number_of_processes
from vit.objectives.sigreg.normality import sketched_normality


def test_one_process_alone_takes_its_own_values():
    values = torch.randn(3)
    assert mean_over_processes(values) is values
    assert number_of_processes() == 1


def test_the_mean_gradient_of_two_processes_is_that_of_one_process_with_all_samples(tmp_path):
    samples, port = torch.randn(1, 6, 3, generator=torch.manual_seed(0)) ** 3, free_port()

    def gradient(part: torch.Tensor) -> torch.Tensor:
        scale = torch.ones(3, requires_grad=True)
        (found,) = torch.autograd.grad(sketched_normality(part * scale, torch.ones(part.shape[1]), 5), scale)
        return found

    def process(rank: int) -> None:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
        torch.save(gradient(samples[:, 3 * rank : 3 * rank + 3]), tmp_path / f"{rank}.pt")

    processes = [forked(tmp_path / f"{rank}.txt", process, rank) for rank in range(2)]
    for rank, started in enumerate(processes):
        started.join()
        assert started.exitcode == 0, (tmp_path / f"{rank}.txt").read_text()
    mean = torch.stack([torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]).mean(dim=0)
    torch.testing.assert_close(mean, gradient(samples))
