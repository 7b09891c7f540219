"""Folders of runs."""

import os
from pathlib import Path

import pytest

from vit.training.runs import new_run_folder, newest_checkpoint, run_folder_of


@pytest.mark.parametrize(("experiment", "newest"), [("*", "a/version_1"), ("b", "b/version_3")])
def test_last_and_best_name_the_newest_run(monkeypatch, tmp_path, experiment, newest):
    monkeypatch.chdir(tmp_path)
    for age, place in enumerate(["a/version_1", "b/version_3", "a/version_2"]):
        path = Path("runs") / place / "checkpoints/best.ckpt"
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (1e9 - age, 1e9 - age))
    assert newest_checkpoint(experiment, "best") == Path("runs") / newest / "checkpoints/best.ckpt"
    assert new_run_folder("b") == Path("runs/b/version_4")


def test_a_checkpoint_outside_of_a_run_has_no_run_folder():
    assert run_folder_of(Path("downloads/last.ckpt")) is None
    assert run_folder_of(None) is None
