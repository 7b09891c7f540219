"""All processes of a training take what the first one decides."""

import os
import socket

import pytest

from tests.forked import forked
from vit.runs.agreement import decide_once

PROCESSES = 3


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("LOCAL_RANK", "VIT_DECISION"):
        monkeypatch.setenv(name, "")  # so that it is as before after the test
        monkeypatch.delenv(name)


def ranks(kind: str, rank: int) -> dict[str, str]:
    if kind == "torchrun":
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": PROCESSES, "TORCHELASTIC_RUN_ID": "none"}
    else:
        names = {"SLURM_PROCID": rank, "SLURM_NTASKS": PROCESSES, "SLURM_NTASKS_PER_NODE": PROCESSES}
    return {name: str(value) for name, value in names.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torchrun", "srun"])
def test_processes_that_were_started_at_once_take_the_decision_of_the_first(kind, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}

    def decide(rank: int) -> None:
        os.environ |= place | ranks(kind, rank)
        for number in range(2):  # two decisions in a row
            decided = decide_once(lambda number=number: f"{number} of rank {rank}")
            (tmp_path / f"{rank}_{number}").write_text(decided)

    processes = [forked(tmp_path / f"{rank}.txt", decide, rank) for rank in reversed(range(PROCESSES))]
    for process in processes:
        process.join()
        assert process.exitcode == 0, [path.read_text() for path in tmp_path.glob("*.txt")]
    decided = {path.name: path.read_text() for path in tmp_path.glob("?_?")}
    assert decided == {f"{rank}_{number}": f"{number} of rank 0" for rank in range(PROCESSES) for number in range(2)}


def test_a_process_that_lightning_starts_takes_the_decision_that_it_inherits(monkeypatch):
    assert decide_once(lambda: "the first") == "the first"
    assert decide_once(lambda: "another training of this process") == "another training of this process"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert decide_once(lambda: "not asked") == "another training of this process"
