"""Runs of train.py in processes of their own, with a faster script in its place."""

import json

import pytest
import training_runs
from training_runs import TrainingError, described, train


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Replace train.py by a few lines of Python."""

    def put(text):
        monkeypatch.setattr(training_runs, "TRAIN", tmp_path / "train.py")
        (tmp_path / "train.py").write_text(text)

    return put


def test_results_are_read_from_the_folder_that_the_run_prints(tmp_path, script, capsys):
    folder = tmp_path / "runs" / "a" / "version_7"
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps({"test_accuracy": 0.5}))
    (folder / "metrics.csv").write_text("epoch,val_loss,train_loss\n0,2.5,\n0,,1\n1,1.25,\n1,,1\n")
    script(f"import os, sys\nprint(sys.argv[1:], os.environ['OMP_NUM_THREADS'])\nprint('run folder: {folder}')\n")
    assert train("seed 3", ["--model.depth", "2"], threads=1) == {"test_accuracy": 0.5, "val_loss": 1.25}
    assert capsys.readouterr().err.startswith("seed 3: ['fit', '--model.depth', '2'] 1\n")


def test_a_failure_has_the_last_line_of_the_output(script):
    script("import sys\nprint('run folder: x')\nprint('error: no such data', file=sys.stderr)\nsys.exit(2)\n")
    with pytest.raises(TrainingError, match=r"^seed 0 failed with exit status 2: error: no such data$"):
        train("seed 0", [])


def test_a_run_that_prints_no_folder_is_a_failure(script):
    script("")
    with pytest.raises(TrainingError, match="seed 0 printed no run folder; its last line: no output"):
        train("seed 0", [])


def test_a_description_comes_from_print_config(script):
    script("import sys\nprint(' '.join(sys.argv[1:]))")
    assert described(["--model.depth", "2"]) == "fit --model.depth 2 --print_config\n"


def test_a_run_without_metrics_has_no_loss(tmp_path, script):
    (tmp_path / "results.json").write_text(json.dumps({"test_accuracy": 0.5}))
    script(f"print('run folder: {tmp_path}')")
    assert train("seed 0", []) == {"test_accuracy": 0.5, "val_loss": None}
