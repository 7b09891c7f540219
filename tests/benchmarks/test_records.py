"""Cells of results, and where they are from."""

import doctest
import json
import subprocess

import pytest
import records
import side_by_side
import torch
from records import commit, is_measured, machine, write_cell


@pytest.mark.parametrize(("module", "count"), [(records, 2), (side_by_side, 3)])
def test_the_examples_in_the_docstrings(module, count):
    failures, examples = doctest.testmod(module)
    assert examples >= count
    assert failures == 0


def test_a_cell_replaces_its_older_self_alone(tmp_path):
    path = tmp_path / "new" / "results.json"
    for name, value in (("b", 1), ("a", 2), ("b", 3)):
        write_cell(path, name, {"value": value}, lambda cells: ",".join(cells))
    assert json.loads(path.read_text()) == {"a": {"value": 2}, "b": {"value": 3}}
    assert path.with_suffix(".md").read_text() == "a,b"
    assert sorted(file.name for file in path.parent.iterdir()) == ["results.json", "results.md"]


def test_a_report_that_fails_leaves_the_older_numbers(tmp_path):
    path = tmp_path / "results.json"
    write_cell(path, "a", {"value": 1}, str)
    with pytest.raises(ZeroDivisionError):
        write_cell(path, "b", {"value": 2}, lambda cells: 1 / 0)
    assert json.loads(path.read_text()) == {"a": {"value": 1}}


def test_the_machine_is_described_in_values_that_json_can_hold():
    facts = machine()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["processor"]
    assert facts["threads"] == torch.get_num_threads()
    assert facts["versions"]["torch"] in torch.__version__
    assert {"torchvision", "timm", "vit-pytorch", "transformers"} <= facts["versions"].keys()


def test_the_commit_is_dirty_if_files_other_than_results_differ_from_it(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    folder = tmp_path / "benchmarks"
    (folder / "results").mkdir(parents=True)
    monkeypatch.setattr(records, "__file__", str(folder / "records.py"))
    assert commit() == ""
    files = [folder / "records.py", folder / "RESULTS.md", folder / "results" / "accuracy.json"]
    for file in files:
        file.write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    clean = commit()
    assert len(clean) == 7
    for file in files[1:]:
        file.write_text("2")
    assert commit() == clean
    files[0].write_text("2")
    assert commit() == f"{clean}-dirty"


def test_the_command_of_a_result_does_not_say_where_it_was_written(monkeypatch):
    monkeypatch.setattr(
        records.sys, "argv", ["/x/heads.py", "--steps", "300", "--output", "somewhere", "--only", "a b"]
    )
    assert records.command() == "python benchmarks/heads.py --steps 300 --only 'a b'"


def test_the_origin_of_a_result_has_command_machine_date_and_commit(monkeypatch):
    monkeypatch.setattr(records, "commit", lambda: "abc1234")
    checked = {"fingerprint": {}}
    for sentence in (records.made(records.provenance() | checked), records.made_at(records.origin() | checked)):
        assert sentence.startswith(f"Made by `{records.command()}` on ")
        assert records.place(machine()) in sentence
        assert sentence.endswith(f"{machine()['date']}, commit abc1234.")
    assert records.made(records.provenance() | checked | {"commit": ""}).endswith(", commit not recorded.")
    assert records.made(records.provenance()).endswith(", abc1234 (unchecked).")


def test_a_cell_of_this_commit_is_not_measured_again(tmp_path, monkeypatch, capsys):
    path = tmp_path / "accuracy.json"
    path.write_text(json.dumps({"a": {"commit": "abc1234", "machine": machine()}}))
    for now, expected in (("abc1234", True), ("1234abc", False), ("", False)):
        monkeypatch.setattr(records, "commit", lambda now=now: now)
        assert is_measured(path, "a") is expected
    assert capsys.readouterr().err == "a: measured before, at commit abc1234\n"
