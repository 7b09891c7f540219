"""The comparison of mechanisms, at a size that takes seconds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vit.attention import MECHANISMS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "attention.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory of a process from /proc")


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_it_writes_a_table_the_numbers_and_two_plots(tmp_path):
    names = ["simplified", "window"]
    printed = run("--mechanisms", *names, "--tokens", "64", "256", "--rounds", "1", "--steps", "3", "--out", tmp_path)
    result = json.loads((tmp_path / "attention.json").read_text())
    assert list(result["training"]) == names
    assert result["training"]["window"]["options"] == {"window": 2}
    assert result["training"]["window"]["steps"] == 3
    assert all(0 <= run["test_accuracy"] <= 1 for run in result["training"].values())
    for costs in result["cost"].values():
        assert list(costs) == names
        assert all(cost["seconds"]["forward"] > 0 for cost in costs.values())
    table = (tmp_path / "attention.md").read_text()
    assert printed.strip() == table.strip()
    assert [line.split(" | ")[0] for line in table.splitlines()[-2:]] == ["| simplified", "| window"]
    for picture in ("attention_accuracy.png", "attention_cost.png"):
        assert (tmp_path / picture).stat().st_size > 10_000


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
