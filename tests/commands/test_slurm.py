"""A job of Slurm in two processes: its signal stops both, the job is queued again, and the next start goes on."""

import os
import signal
import stat
from pathlib import Path

import pytest
import torch
from lightning.pytorch.utilities import rank_zero_only

from tests.commands.test_distributed import free_port
from tests.forked import forked
from tests.tiny import TINY, run_command
from vit.objectives.classify.objective import ViTClassifier

STEPS = 6 * 3  # batches of 100 images of both processes, in three epochs
FIT = ["fit", *TINY, "--data.batch_size", "100", "--trainer.max_epochs", "3", "--ckpt_path", "auto"]
FIT += ["--trainer.devices", "2", "--trainer.num_nodes", "1"]


def start(folder: Path, experiment: str, attempt: int, signalled: int | None = None) -> tuple[list[int], list[str]]:
    """Run ``fit`` in two processes as ``srun`` starts them; one of them gets the signal of Slurm in step 5.

    Returns:
        Their exit statuses, and what they print.
    """
    port = free_port()

    def fit(rank: int) -> None:
        os.chdir(folder)
        job = {"JOB_ID": 7, "JOB_NAME": "train", "NTASKS": 2, "NTASKS_PER_NODE": 2, "NODELIST": "localhost"}
        place = {"PROCID": rank, "LOCALID": rank, "NODEID": 0}
        os.environ |= {f"SLURM_{name}": str(value) for name, value in (job | place).items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "XDG_CACHE_HOME": str(folder / "cache")}
        os.environ["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
        rank_zero_only.rank = rank  # as lightning finds it in the environment when it is imported
        if rank == signalled:

            def raise_at_step_5(module: ViTClassifier, *_: object) -> None:
                if module.trainer.global_step == 5:
                    signal.raise_signal(signal.SIGUSR1)

            ViTClassifier.on_before_optimizer_step = raise_at_step_5
        run_command(*FIT, "--experiment", experiment)

    outputs = [folder / f"{experiment}_{attempt}_{rank}.txt" for rank in range(2)]
    processes = [forked(output, fit, rank) for rank, output in enumerate(outputs)]
    for process in processes:
        process.join()
    return [process.exitcode for process in processes], [output.read_text() for output in outputs]


def last_of(run: Path) -> dict:
    return torch.load(run / "checkpoints/last.ckpt", weights_only=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose ``bin/scontrol`` notes what it is asked."""
    root = tmp_path_factory.mktemp("slurm")
    script = root / "bin/scontrol"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\necho "$@" >> {root}/asked.txt\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return root


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> dict[str, torch.Tensor]:
    statuses, outputs = start(folder, "undisturbed", 0)
    assert statuses == [0, 0], outputs
    return last_of(folder / "runs/undisturbed/version_0")["state_dict"]


@pytest.mark.parametrize("signalled", [0, 1])
def test_the_signal_to_either_process_queues_the_job_again_once_and_the_next_start_ends_as_if_it_had_not_come(
    signalled, folder, undisturbed
):
    experiment, asked = f"rank_{signalled}", folder / "asked.txt"
    asked.unlink(missing_ok=True)
    statuses, outputs = start(folder, experiment, 0, signalled)
    assert statuses == [143, 143], outputs
    assert asked.read_text() == "requeue 7\n"
    left = last_of(folder / f"runs/{experiment}/version_0")
    assert 5 < left["global_step"] < STEPS
    statuses, outputs = start(folder, experiment, 1)
    assert statuses == [0, 0], outputs
    assert f"goes on from runs/{experiment}/version_0/checkpoints/last.ckpt" in outputs[0]
    assert not any("Traceback" in output for output in outputs)
    weights = last_of(folder / f"runs/{experiment}/version_1")["state_dict"]
    assert all(torch.equal(weights[name], undisturbed[name]) for name in undisturbed)
