"""Cells of results, and where they are from."""

import doctest
import json
import subprocess

import pytest
import records
import torch
from records import commit, machine, write_cell


def test_the_examples_in_the_docstrings():
    failures, examples = doctest.testmod(records)
    assert examples >= 2
    assert failures == 0


def test_a_cell_takes_the_place_of_its_older_self_alone(tmp_path):
    path = tmp_path / "new" / "results.json"
    for name, value in (("b", 1), ("a", 2), ("b", 3)):
        write_cell(path, name, {"value": value}, lambda cells: ",".join(cells))
    assert json.loads(path.read_text()) == {"a": {"value": 2}, "b": {"value": 3}}
    assert path.with_suffix(".md").read_text() == "a,b"
    assert sorted(file.name for file in path.parent.iterdir()) == ["results.json", "results.md"]


def test_a_report_that_fails_leaves_the_numbers_that_were_there(tmp_path):
    path = tmp_path / "results.json"
    write_cell(path, "a", {"value": 1}, str)
    with pytest.raises(ZeroDivisionError):
        write_cell(path, "b", {"value": 2}, lambda cells: 1 / 0)
    assert json.loads(path.read_text()) == {"a": {"value": 1}}


def test_the_machine_is_described_in_what_json_can_hold():
    facts = machine()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["processor"]
    assert facts["threads"] == torch.get_num_threads()
    assert facts["versions"]["torch"] in torch.__version__
    assert {"torchvision", "timm", "vit-pytorch", "transformers"} <= facts["versions"].keys()


def test_the_commit_says_whether_files_differ_from_it(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(records, "__file__", str(tmp_path / "records.py"))
    assert commit() == ""
    (tmp_path / "records.py").write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    clean = commit()
    assert len(clean) == 7
    (tmp_path / "records.py").write_text("2")
    assert commit() == f"{clean}-dirty"
