"""A training in several processes, of which one is killed, at a small size."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torture_ranks

from tests.tiny import CPU, MODEL
from vit.runs.run_pictures import RunPictures

ROOT = Path(__file__).parents[2]


@pytest.fixture
def quick(monkeypatch):
    """Trainings without pictures, which take longer than the training of a model so small."""
    monkeypatch.setattr("sys.argv", ["train.py"])
    for name in ("curves", "images"):
        monkeypatch.setattr(RunPictures, f"_draw_{name}", lambda *_: None)


@pytest.mark.parametrize(("data", "number"), [("folder", 2), ("folder", 4), ("shards", 2)])
def test_killed_trainings_end_with_the_weights_of_the_undisturbed_one_and_every_image_once(
    data, number, tmp_path, quick
):
    result = torture_ranks.torture(tmp_path, data, number, kills=2, seed=0, kills_a_round=3)
    assert result["kills"]["SIGKILL"] >= 2


@pytest.mark.parametrize("data", torture_ranks.DATA)
@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_whose_peer_is_killed_says_so_in_one_line(killed, data, tmp_path, quick, capfd):
    """Torchrun ends the others as well, and what they say depends on who is faster. Here they are left alone."""
    torture_ranks.write_digits(tmp_path)
    torture_ranks.write_shards(tmp_path)
    command = [*torture_ranks.RECIPE, *torture_ranks.DATA[data], "--trainer.max_epochs", "1000"]
    job = torture_ranks.Ranks(tmp_path, lambda: ["fit", *command], number=2)
    job.start()
    first_of(tmp_path, f"seen_{killed}.txt")
    os.kill(job.processes[killed].pid, signal.SIGKILL)
    other = job.processes[1 - killed]
    other.join(200)
    said = capfd.readouterr().err.splitlines()
    assert other.exitcode == 2, said
    assert [line for line in said if line.startswith("error: another process of the training has ended")] == said[-1:]
    assert not any("Traceback" in line for line in said)


def test_a_step_that_was_done_again_counts_once(tmp_path):
    lines = [[0, 0, [1, 2]], [0, 1, [3, 4]], [0, 1, [3, 4]], [1, 0, [4, 2]]]
    (tmp_path / "seen_0.txt").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "seen_1.txt").write_text(json.dumps([0, 0, [5, 2]]))
    assert torture_ranks.seen_images(tmp_path) == {0: Counter([1, 2, 3, 4, 5, 2]), 1: Counter([4, 2])}


def first_of(folder: Path, what: str, seconds: int = 200) -> Path:
    """Wait for the first file of a pattern."""
    for _ in range(seconds * 10):
        if found := next(folder.glob(what), None):
            return found
        time.sleep(0.1)
    raise AssertionError(f"no {what}")


def test_torchrun_goes_on_after_a_process_was_killed_without_a_traceback(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"]
    torchrun += ["--nproc_per_node", "2"]
    fit = [str(ROOT / "train.py"), "fit", "--data", "Digits", *MODEL, *CPU, "--trainer.max_epochs", "30"]
    changed = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with (tmp_path / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [*torchrun, *fit, "--experiment", "e", "--ckpt_path", "auto"],
            env=os.environ | changed,
            cwd=tmp_path,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        first_of(tmp_path, "runs/e/version_0/checkpoints/last.ckpt")
        of_rank_1 = [
            int(place.parent.name)
            for place in Path("/proc").glob("[0-9]*/environ")
            if _is_rank_1_of(place, process.pid)
        ]
        os.kill(of_rank_1[0], signal.SIGKILL)
        assert process.wait(300) == 0, (tmp_path / "output.txt").read_text()
    text = (tmp_path / "output.txt").read_text()
    assert "Traceback" not in text
    assert text.count("another process of the training has ended") <= 1
    assert "goes on from runs/e/version_0/checkpoints/last.ckpt" in text
    results = json.loads((tmp_path / "runs/e/version_1/results.json").read_text())
    assert results["finished"]
    assert results["devices"] == 2


def _is_rank_1_of(place: Path, parent: int) -> bool:
    """Whether a process is the second one that torchrun has started."""
    try:
        started_by = int(place.with_name("stat").read_text().rpartition(")")[2].split()[1])
        return started_by == parent and b"\0RANK=1\0" in place.read_bytes()
    except OSError:  # ended, or of another user
        return False
