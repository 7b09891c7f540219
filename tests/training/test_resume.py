"""A run that was stopped, however rudely, continues as if it had not been."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).parents[2]
RANDOM = [  # every source of randomness, and an average beside the weights
    *("--data", "Digits", "--data.batch_size", "50", "--data.crop_padding", "1", "--data.erasing", "0.5"),
    *("--data.mixup", "0.5", "--data.cutmix", "1", "--data.policy", "trivialaugment"),
    *("--model.patch_size", "4", "--model.embed_dim", "8", "--model.depth", "2", "--model.num_heads", "2"),
    *("--model.dropout", "0.1", "--model.drop_path", "0.2", "--model.ema_decay", "0.9"),
    *("--trainer.accelerator", "cpu", "--trainer.precision", "32-true", "--trainer.max_epochs", "3"),
    *("--experiment", "resume"),
]


def weights(path: Path) -> dict[str, torch.Tensor]:
    checkpoint = torch.load(path, weights_only=True)
    training = {f"training.{name}": tensor for name, tensor in checkpoint["training_weights"].items()}
    return {**checkpoint["state_dict"], **training}


def assert_same_weights(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen]:
    """A run in another process, which writes what it says to ``output.txt``."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": str(REPOSITORY),
    }
    command = [sys.executable, str(REPOSITORY / "train.py"), "fit", *RANDOM, *arguments]
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def wait_for(path: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, "the run ended early"
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_run_killed_in_mid_epoch_and_resumed_ends_with_the_same_bits(run, folder):
    long_enough = ("--trainer.max_epochs", "6")
    run("fit", *RANDOM, *long_enough, "--experiment", "whole")
    last = folder / "runs/resume/version_0/checkpoints/last.ckpt"
    with started(folder, *long_enough) as process:
        wait_for(last, process)
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
    assert not (last.parents[1] / "results.json").exists(), "it had finished before it was killed"

    run("fit", *RANDOM, *long_enough, "--ckpt_path", "last")

    assert_same_weights(
        folder / "runs/resume/version_1/checkpoints/last.ckpt", folder / "runs/whole/version_0/checkpoints/last.ckpt"
    )


# Lightning's own callback, which finds itself in another folder; ours takes its files along.
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_run_resumed_from_the_middle_of_an_epoch_ends_with_the_same_bits(run, folder):
    def every_ten_steps(name: str) -> list[str]:
        return [
            *("--trainer.callbacks+", "ModelCheckpoint", "--trainer.callbacks.dirpath", name),
            *("--trainer.callbacks.every_n_train_steps", "10", "--trainer.callbacks.save_top_k", "-1"),
        ]

    run("fit", *RANDOM, *every_ten_steps("whole"))
    middle = next((folder / "whole").glob("*step=30.ckpt"))
    assert torch.load(middle, weights_only=True)["epoch"] == 1

    run("fit", *RANDOM, *every_ten_steps("resumed"), "--ckpt_path", middle)

    runs = folder / "runs/resume"
    assert_same_weights(runs / "version_0/checkpoints/last.ckpt", runs / "version_1/checkpoints/last.ckpt")


# Lightning's own callback again; and its count of epochs, which after such a resume begins with an empty one.
@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [[], ["--data.val_fraction", "0"], ["--data.val_fraction", "0", "--trainer.limit_train_batches", "10"]],
    ids=["validated", "not validated", "part of the batches"],
)
def test_a_run_of_steps_resumed_from_the_end_of_an_epoch_ends_with_the_same_bits(run, folder, changed):
    def every_epoch(name: str) -> list[str]:
        return [
            *("--trainer.callbacks+", "ModelCheckpoint", "--trainer.callbacks.dirpath", name),
            *("--trainer.callbacks.save_top_k", "-1", "--trainer.callbacks.save_on_train_epoch_end", "true"),
        ]

    steps = ["--trainer.max_epochs", "-1", "--trainer.max_steps", "45", *changed]
    run("fit", *RANDOM, *steps, *every_epoch("whole"))
    first = next((folder / "whole").glob("epoch=0*.ckpt"))

    run("fit", *RANDOM, *steps, *every_epoch("resumed"), "--ckpt_path", first)

    runs = folder / "runs/resume"
    results = [json.loads((runs / name / "results.json").read_text()) for name in ("version_0", "version_1")]
    assert [result["steps"] for result in results] == [45, 45]
    assert_same_weights(runs / "version_0/checkpoints/last.ckpt", runs / "version_1/checkpoints/last.ckpt")


def test_a_finished_run_is_resumed_to_test_the_same_weights(run, folder):
    run("fit", *RANDOM)
    run("fit", "--ckpt_path", "last", "--experiment", "resume")
    runs = folder / "runs/resume"
    before, after = (json.loads((runs / f"version_{n}/results.json").read_text()) for n in (0, 1))
    assert after["test_accuracy"] == before["test_accuracy"]
    assert (after["steps"], after["seed"]) == (before["steps"], before["seed"])


def test_the_best_weights_come_along_from_a_folder_that_was_moved(run, folder):
    cli = run("fit", *RANDOM)
    best = torch.load(cli.run_folder / "checkpoints/best.ckpt", weights_only=True)
    moved = folder / "elsewhere"
    shutil.move(folder / "runs", moved)
    never = ["--model.lr", "0", "--model.warmup", "0", "--trainer.max_epochs", "4"]
    cli = run("fit", *RANDOM, *never, "--ckpt_path", moved / "resume/version_0/checkpoints/last.ckpt")
    taken = torch.load(cli.run_folder / "checkpoints/best.ckpt", weights_only=True)
    assert taken["global_step"] == best["global_step"]

    (moved / "resume/version_0/checkpoints/best.ckpt").unlink()
    cli = run("fit", *RANDOM, *never, "--ckpt_path", moved / "resume/version_0/checkpoints/last.ckpt")
    assert (cli.run_folder / "checkpoints/best.ckpt").exists()


@pytest.mark.parametrize("other", [["--model.optimizer", "muon"], ["--model.layer_decay", "0.5"]])
def test_the_state_of_another_optimizer_is_refused(run, mistake, folder, other):
    run("fit", *RANDOM, "--trainer.max_epochs", "1")
    told = mistake("fit", *RANDOM, *other, "--ckpt_path", "last")
    assert f"leave {other[0]} as it was" in told


@pytest.mark.slow
def test_ctrl_c_keeps_the_last_checkpoint_and_the_results_and_says_how_to_resume(folder):
    run_folder = folder / "runs/resume/version_0"
    with started(folder, "--trainer.max_epochs", "1000") as process:
        wait_for(run_folder / "checkpoints/last.ckpt", process)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    output = (folder / "output.txt").read_text()
    assert (run_folder / "results.json").exists()
    assert (run_folder / "curves.png").exists()
    last = Path("runs/resume/version_0/checkpoints/last.ckpt")
    assert f"resume with: python train.py fit --ckpt_path {last}\n" in output
    assert "Traceback" not in output
