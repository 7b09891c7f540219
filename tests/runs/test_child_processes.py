"""Trainings in processes of their own, with a faster script in place of the command fit."""

import os
import sys
import time

import pytest

from vit.runs import child_processes
from vit.runs.child_processes import TrainingError, train_all

STEPS = """
import pathlib, signal, sys, time
name = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: (name.with_suffix(".stopped").touch(), sys.exit(143)))
name.touch()
while not name.with_suffix(".end").exists():
    print("a step", flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Replace the command by a few lines of Python."""

    def put(text):
        (tmp_path / "fit.py").write_text(text)
        monkeypatch.setattr(child_processes, "TRAIN", (sys.executable, str(tmp_path / "fit.py")))

    return put


def wait_for(*paths):
    for path in paths:
        while not path.exists():
            time.sleep(0.01)


def test_the_output_of_a_training_is_printed_with_its_name(script, capsys):
    script("import os, sys\nprint(sys.argv[1:], os.environ['OMP_NUM_THREADS'])\nprint('end', file=sys.stderr)\n")
    assert list(train_all({"fold 0": ["--lr", "2"]}, threads=3)) == ["fold 0"]
    assert capsys.readouterr().out.splitlines() == ["fold 0: ['--lr', '2'] 3", "fold 0: end"]


def test_a_training_imports_the_package_of_this_process(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script("import importlib.util\nprint(importlib.util.find_spec('vit').origin)\n")
    list(train_all({"a": []}))
    assert capsys.readouterr().out == f"a: {sys.modules['vit'].__file__}\n"


def test_trainings_are_one_after_the_other_or_side_by_side(script, tmp_path):
    script(STEPS)
    paths = [tmp_path / name for name in "abc"]
    trainings = train_all({path.name: [str(path)] for path in paths}, parallel=2)
    paths[1].with_suffix(".end").touch()
    assert next(trainings) == "b"
    wait_for(paths[0], paths[2])
    paths[0].with_suffix(".end").touch()
    assert next(trainings) == "a"
    paths[2].with_suffix(".end").touch()
    assert list(trainings) == ["c"]


def test_after_a_failure_no_training_starts_and_the_others_go_on_to_their_end(script, tmp_path):
    script(f"import sys\nif sys.argv[1] == 'bad': sys.exit('error: no such data')\n{STEPS}")
    first = tmp_path / "a"
    first.with_suffix(".end").touch()
    never = tmp_path / "never"
    with pytest.raises(TrainingError, match=r"^bad failed with exit status 1: error: no such data$"):
        list(train_all({"bad": ["bad"], "a": [str(first)], "never": [str(never)]}))
    assert not never.exists()


@pytest.mark.skipif(os.name != "posix", reason="Windows has no SIGTERM")
def test_ctrl_c_stops_the_trainings_after_their_step_and_starts_no_other(script, tmp_path):
    script(STEPS)
    ended, running, never = (tmp_path / name for name in ("ended", "running", "never"))
    ended.with_suffix(".end").touch()
    trainings = train_all({path.name: [str(path)] for path in (ended, running, never)})
    assert next(trainings) == "ended"
    wait_for(running)
    with pytest.raises(KeyboardInterrupt):
        trainings.throw(KeyboardInterrupt)
    assert running.with_suffix(".stopped").exists()
    assert not never.exists()


def test_a_training_that_does_not_stop_is_killed(script, tmp_path, monkeypatch):
    monkeypatch.setattr(child_processes, "PATIENCE", 0.1)
    script(STEPS.replace("sys.exit(143)", "None"))
    ended, running = (tmp_path / name for name in ("ended", "running"))
    ended.with_suffix(".end").touch()
    trainings = train_all({path.name: [str(path)] for path in (ended, running)})
    next(trainings)
    wait_for(running)
    with pytest.raises(KeyboardInterrupt):
        trainings.throw(KeyboardInterrupt)
    assert running.with_suffix(".stopped").exists()
