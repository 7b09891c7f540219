"""The scores of several runs together."""

import json

import pytest

from vit.runs.several import Member
from vit.runs.summary import write_summary

RUN = {"data": "ImageTable a", "objective": "ViTClassifier", "parameters": 7, "torch": "2", "finished": True}
MEMBERS = [Member(0, 3), Member(1, 3), Member(2, 3)]


@pytest.fixture
def runs(tmp_path):
    """Write the results of runs, and return the folder of each."""

    def write(*results):
        folders = {}
        for number, (member, changes) in enumerate(zip(MEMBERS, results, strict=False)):
            folders[member] = tmp_path / f"version_{number}"
            folders[member].mkdir()
            (folders[member] / "results.json").write_text(json.dumps(RUN | changes))
        return folders

    return write


def test_mean_and_sample_standard_deviation_are_of_the_scores_that_the_objective_names(runs, tmp_path):
    folders = runs(
        {"test_accuracy": 0.5, "val_accuracy": 0.25, "scores": {"balanced_accuracy": 0.5, "loss": 9, "count": 4}},
        {"test_accuracy": 0.7, "val_accuracy": 0.25, "scores": {"balanced_accuracy": 0.4, "top5_accuracy": None}},
        {"test_accuracy": 0.9, "val_accuracy": 0.25, "scores": {"balanced_accuracy": None}},
    )
    table = write_summary(tmp_path, folders, {"command": "folds --x", "folds": 3})
    found = json.loads((tmp_path / "results.json").read_text())
    assert list(found["scores"]) == ["test_accuracy", "val_accuracy", "balanced_accuracy"]
    test, val, balanced = found["scores"].values()
    assert (test["mean"], test["standard_deviation"]) == (pytest.approx(0.7), pytest.approx(0.2))
    assert (test["lowest"], test["highest"], test["runs"], test["better"]) == (0.5, 0.9, 3, "higher")
    assert (val["mean"], val["standard_deviation"]) == (0.25, 0)
    assert (balanced["mean"], balanced["runs"]) == (pytest.approx(0.45), 2)
    assert [(run["fold"], run["seed"], run["test_accuracy"]) for run in found["runs"]] == [
        (0, 3, 0.5),
        (1, 3, 0.7),
        (2, 3, 0.9),
    ]
    assert [run["folder"] for run in found["runs"]] == [str(folder) for folder in folders.values()]
    assert (found["command"], found["folds"], found["data"]) == ("folds --x", 3, "ImageTable a")
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()]
    assert rows[0] == ["run", "Test accuracy", "Validation accuracy", "Balanced accuracy"]
    assert rows[2][:2] == ["fold 0, seed 3", "50.00 %"]
    assert rows[-1] == ["mean", "70.00 % ± 20.00 %", "25.00 % ± 0.00 %", "45.00 % ± 7.07 %"]
    page = (tmp_path / "summary.md").read_text()
    assert table in page
    assert "    folds --x\n" in page


def test_an_objective_without_accuracy_has_its_own_scores(runs, tmp_path):
    folders = runs({"objective": "ImageCompleter", "test_bits_per_pixel": 1.5, "val_bits_per_pixel": 1.25})
    write_summary(tmp_path, folders, {"command": ""})
    scores = json.loads((tmp_path / "results.json").read_text())["scores"]
    assert list(scores) == ["test_bits_per_pixel", "val_bits_per_pixel"]
    assert scores["test_bits_per_pixel"]["better"] == "lower"


def test_one_run_has_no_spread(runs, tmp_path):
    table = write_summary(tmp_path, runs({"test_accuracy": 0.5}), {"command": ""})
    assert json.loads((tmp_path / "results.json").read_text())["scores"]["test_accuracy"]["standard_deviation"] is None
    assert table.splitlines()[-1].split("|")[2].strip() == "50.00 %"
