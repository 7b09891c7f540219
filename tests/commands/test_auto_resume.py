"""``fit --ckpt_path auto`` goes on from the newest checkpoint of an experiment, or starts without one."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from tests.forked import forked
from tests.tiny import TINY, run_command
from vit.objectives.classify.objective import ViTClassifier
from vit.runs import preemption
from vit.support.files import HOST

AUTO = ["fit", *TINY, "--experiment", "tiny", "--ckpt_path", "auto"]
LONGER = ["--trainer.max_epochs", "3"]


def weights(path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)["state_dict"]


def results(version: int) -> dict:
    return json.loads(Path(f"runs/tiny/version_{version}/results.json").read_text())


SLURM = {"JOB_ID": "7", "JOB_NAME": "train", "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_training_that_a_signal_stopped_goes_on_by_the_same_command_as_if_it_had_not_been(
    number, run, folder, monkeypatch
):
    requeued = []
    monkeypatch.setattr(preemption.subprocess, "run", lambda command, check: requeued.append(command))
    for name, value in SLURM.items() if number == signal.SIGUSR1 else ():
        monkeypatch.setenv(f"SLURM_{name}", value)
    run(*AUTO[:-2], "--experiment", "whole")

    def stop_at_step_5(module, *_) -> None:
        if module.trainer.global_step == 5:
            signal.raise_signal(number)

    with monkeypatch.context() as patch:
        patch.setattr(ViTClassifier, "on_before_optimizer_step", stop_at_step_5, raising=False)
        with pytest.raises(SystemExit) as stopped:
            run(*AUTO)
    assert stopped.value.code == 143
    left = torch.load("runs/tiny/version_0/checkpoints/last.ckpt", weights_only=True)
    assert left["global_step"] == 6
    assert requeued == ([["scontrol", "requeue", "7"]] if number == signal.SIGUSR1 else [])
    assert not [*folder.glob("hpc_ckpt*")]
    run(*AUTO)
    one, other = (weights(f"runs/{run}/checkpoints/last.ckpt") for run in ("whole/version_0", "tiny/version_1"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(SystemExit) as ended:
        run(*AUTO)
    assert ended.value.code == 0


def test_a_finished_run_that_was_killed_before_its_report_gets_one_and_is_not_trained_again(finished, run, capsys):
    (finished / "report.html").unlink()
    left = finished / f".report.html.{HOST}.0.{2**22 + 1}.unfinished"  # of a process that no longer runs
    left.write_text("<html>")
    with pytest.raises(SystemExit) as ended:
        run(*AUTO, "--seed_everything", "3")
    assert ended.value.code == 0
    assert "is finished; to train on" in capsys.readouterr().out
    assert (finished / "report.html").read_text().endswith("</html>")
    assert not left.exists()
    assert not (finished.parent / "version_1").exists()


def test_the_newest_whole_checkpoint_is_taken_and_a_damaged_one_named(finished, run, folder, capsys):
    second = folder / "runs/tiny/version_1"
    shutil.copytree(finished, second)
    newest = second / "checkpoints/last.ckpt"
    newest.write_bytes(newest.read_bytes()[:-500])
    for place, age in ((finished, 2), (second, 1)):
        for path in place.glob("checkpoints/*"):
            os.utime(path, (1e9 - age, 1e9 - age))
    (second / "checkpoints/best.ckpt").unlink()
    run(*AUTO, *LONGER, "--seed_everything", "3")
    captured = capsys.readouterr()
    assert "passed over: runs/tiny/version_1/checkpoints/last.ckpt" in captured.err
    assert "goes on from runs/tiny/version_0/checkpoints/last.ckpt" in captured.out
    assert results(2)["steps"] == results(0)["steps"] * 3 // 2


def test_weights_alone_are_no_training_to_go_on_with(finished, run, error_of, capsys):
    contents = torch.load(finished / "checkpoints/last.ckpt", weights_only=True)
    alone = {
        name: part for name, part in contents.items() if name not in ("callbacks", "optimizer_states", "lr_schedulers")
    }
    path = finished / "checkpoints/step=500.ckpt"
    torch.save(alone, path)  # as ModelCheckpoint does with save_weights_only
    line = error_of("fit", "--ckpt_path", str(path), *LONGER)
    assert line.endswith(f"{path} holds weights alone: start from it by --model.init_from {path}")
    run(*AUTO, *LONGER, "--seed_everything", "3")
    assert "goes on from runs/tiny/version_0/checkpoints/last.ckpt" in capsys.readouterr().out


def test_the_run_of_another_seed_is_not_taken_for_this_one(finished, error_of):
    line = error_of(*AUTO, "--seed_everything", "4")
    assert "the newest run, runs/tiny/version_0, has seed_everything 3, and this one 4: give each seed an" in line


def test_two_runs_that_start_at_once_have_a_folder_each(folder):
    def fit(seed: int) -> None:
        run_command(*AUTO[:-2], "--seed_everything", seed)

    started = [forked(folder / f"{seed}.txt", fit, seed) for seed in (1, 2)]
    for seed, process in enumerate(started, 1):
        process.join()
        assert process.exitcode == 0, (folder / f"{seed}.txt").read_text()
    assert {results(version)["seed"] for version in (0, 1)} == {1, 2}


@pytest.mark.parametrize("command", ["test", "validate", "predict"])
def test_auto_is_a_word_of_fit(error_of, command):
    assert f"{command} takes --ckpt_path last" in error_of(command, "--ckpt_path", "auto", "--experiment", "tiny")


def test_an_experiment_is_named(error_of, folder):
    assert "name it by --experiment or --config" in error_of("fit", "--data", "Digits", "--ckpt_path", "auto")
    assert "must be the name of one folder" in error_of(*AUTO[:-4], "--experiment", "*", "--ckpt_path", "auto")


def test_a_config_can_ask_for_it(finished, run, folder, capsys):
    (folder / "tiny.yaml").write_text("ckpt_path: auto\n")
    run("fit", "--config", "tiny.yaml", *TINY, *LONGER, "--seed_everything", "3")
    assert "goes on from runs/tiny/version_0/checkpoints/last.ckpt" in capsys.readouterr().out
    assert results(1)["steps"] == results(0)["steps"] * 3 // 2


def test_the_experiment_that_a_config_names_is_that_of_its_runs(run, folder, capsys):
    run("fit", *TINY, "--experiment", "tiny")
    (folder / "other.yaml").write_text("experiment: tiny\n")
    run("fit", "--config", "other.yaml", *TINY, *LONGER, "--ckpt_path", "auto")
    assert "goes on from runs/tiny/version_0/checkpoints/last.ckpt" in capsys.readouterr().out
    assert results(1)["epochs"] > results(0)["epochs"]
