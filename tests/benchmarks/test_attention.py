"""The comparison of mechanisms, at a size that takes seconds."""

import json
import subprocess
import sys
from pathlib import Path

import attention
import pytest
from attention_cost import MEASURED, costs
from PIL import Image
from training_runs import TrainingError

import train as command_line
from vit.attention import MECHANISMS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "attention.py"
SMALL = ["--tokens", "64", "256", "--rounds", "1", "--steps", "3"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory of a process from /proc")


def run(*arguments, folder):
    command = [sys.executable, SCRIPT, *arguments, "--output", "results"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.slow
def test_it_writes_a_table_the_numbers_and_two_plots(tmp_path):
    names = ["simplified", "window"]
    finished = run("--mechanisms", *names, *SMALL, folder=tmp_path)
    assert finished.returncode == 0, finished.stderr
    results = tmp_path / "results"
    result = json.loads((results / "attention.json").read_text())
    assert list(result["training"]) == names
    assert result["training"]["window"]["options"] == {"window": 2}
    assert result["training"]["window"]["steps"] == 3
    assert all(0 <= run["test_accuracy"] <= 1 for run in result["training"].values())
    for measured in result["cost"].values():
        assert list(measured) == names
        assert all(cost["seconds"]["forward"] > 0 for cost in measured.values())
    table = (results / "attention.md").read_text()
    assert finished.stdout.strip() == table.strip()
    assert [line.split(" | ")[0] for line in table.splitlines()[-2:]] == ["| simplified", "| window"]
    for picture in ("attention_accuracy.png", "attention_cost.png"):
        assert (results / picture).stat().st_size > 10_000


def test_a_mechanism_whose_training_fails_is_one_line_and_the_others_go_on(monkeypatch, tmp_path, capsys):
    def train(name, typed):
        if name == "linear":
            raise TrainingError("linear failed with exit status 1: no")
        return {"test_accuracy": 0.5, "seconds": 3.0} | dict.fromkeys(attention.KEPT[2:], 0)

    monkeypatch.setattr(attention, "train", train)
    typed = ["--mechanisms", "linear", "window", "--tokens", "--steps", "3", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["attention.py", *typed])
    with pytest.raises(SystemExit, match="error: 1 of 2 trainings failed"):
        attention.main()
    printed = capsys.readouterr()
    assert printed.err == "error: linear failed with exit status 1: no\n"
    assert "| window | window 2 | 50.0 % | 3 s |" in printed.out


def test_results_of_some_do_not_take_the_place_of_those_of_all(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["attention.py", "--mechanisms", "window"])
    with pytest.raises(SystemExit):
        attention.main()
    assert "name --output" in capsys.readouterr().err


def test_a_length_without_a_grid_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["attention.py", "--tokens", "64", "50"])
    with pytest.raises(SystemExit):
        attention.main()
    assert "--tokens (50) must be squares, of grids as wide as high: the nearest is 49" in capsys.readouterr().err


def test_what_would_take_too_long_or_fails_is_left_out(monkeypatch, capsys):
    assert costs(["softmax"], 64, 1, {})["softmax"]["rounds"] == 1
    before = {"64": {"softmax": {"seconds": {MEASURED: 31.0}, "bytes": {MEASURED: 1}}}}
    assert costs(["softmax"], 128, 1, before) == {"softmax": None}
    monkeypatch.setattr(sys, "executable", "false")
    assert costs(["softmax"], 64, 1, {}) == {"softmax": None}
    assert "error: softmax at 64 tokens: exit status 1" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["softmax", "neighborhood"])
@pytest.mark.parametrize("on_images", [False, True])
def test_the_command_line_takes_the_plain_recipe(monkeypatch, tmp_path, name, on_images):
    def train(name, typed):
        cli = command_line.main([*typed, "--trainer.accelerator", "cpu", "--trainer.precision", "32-true"], run=False)
        hp = cli.model.hparams
        assert (hp.optimizer, hp.init, hp.patch_drop, hp.attention) == ("adamw", "glorot", 0, name.split("_")[-1])
        return dict.fromkeys(attention.KEPT, 0)

    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        Image.new("RGB", (32, 32)).save(tmp_path / place / "1.png")
    monkeypatch.setattr(attention, "train", train)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    kept = attention.trained(name, tmp_path if on_images else None, 3)
    assert kept["options"] == ({} if name == "softmax" else {"kernel": 5 if on_images else 3})


def test_the_results_of_the_repository_are_of_every_mechanism_and_as_good_as_claimed():
    result = json.loads((ROOT / "benchmarks" / "results" / "attention.json").read_text())
    assert list(result["training"]) == list(MECHANISMS)
    assert all(run["test_accuracy"] >= 0.93 for run in result["training"].values())
    lengths = list(result["cost"])
    assert lengths[-2:] == ["4096", "16384"]
    table = (ROOT / "benchmarks" / "results" / "attention.md").read_text()
    for name, run in result["training"].items():
        (row,) = [line for line in table.splitlines() if line.startswith(f"| {name} |")]
        assert f"{100 * run['test_accuracy']:.1f} %" in row
