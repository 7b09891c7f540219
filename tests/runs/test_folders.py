"""Folders of runs."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from vit.runs import folders
from vit.runs.folders import (
    check_experiment,
    claim_folder,
    discard_if_unused,
    has_same_length,
    newest_checkpoint,
    newest_first,
    run_folder_of,
)


@pytest.mark.parametrize(("experiment", "newest"), [("*", "a/version_1"), ("b", "b/version_3")])
def test_last_and_best_name_the_newest_run(monkeypatch, tmp_path, experiment, newest):
    monkeypatch.chdir(tmp_path)
    for age, place in enumerate(["a/version_1", "b/version_3", "a/version_2"]):
        path = Path("runs") / place / "checkpoints/best.ckpt"
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (1e9 - age, 1e9 - age))
    assert newest_checkpoint(experiment, "best") == Path("runs") / newest / "checkpoints/best.ckpt"


def test_the_checkpoints_of_an_experiment_come_newest_first_and_of_equal_age_the_last_one(tmp_path):
    ages = {"a/version_0/checkpoints/last": 1, "a/version_1/checkpoints/best": 2, "a/version_1/checkpoints/last": 2}
    for name, age in (ages | {"b/version_0/checkpoints/last": 0, "a/version_2/checkpoints/step": 0}).items():
        path = tmp_path / f"{name}.ckpt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (1e9 - age, 1e9 - age))
    newest = ["a/version_2/checkpoints/step", *ages]
    newest[2:] = ["a/version_1/checkpoints/last", "a/version_1/checkpoints/best"]
    assert newest_first("a", tmp_path) == [tmp_path / f"{name}.ckpt" for name in newest]


@pytest.mark.parametrize("newer", [9, 10])
def test_a_copy_in_a_resumed_run_comes_before_the_checkpoint_that_it_is_of(tmp_path, newer):
    """A run that is killed after its training has a resumed run with the same checkpoint, which may be finished."""
    for number in (9, 10):
        path = tmp_path / f"a/version_{number}/checkpoints/last.ckpt"
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (1e9, 1e9))
        os.utime(path.parents[1], (1e9 + (number == newer), 1e9 + (number == newer)))
    assert newest_first("a", tmp_path)[0] == tmp_path / f"a/version_{newer}/checkpoints/last.ckpt"


def test_a_folder_is_claimed_after_the_highest_number(tmp_path):
    for name in ("version_3", "version_x", "versions_9", "evaluations"):
        (tmp_path / name).mkdir()
    assert claim_folder(tmp_path, "version") == tmp_path / "version_4"
    assert claim_folder(tmp_path / "new", "test_best") == tmp_path / "new/test_best_0"


def test_runs_that_start_at_once_get_a_folder_each(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        folders = list(pool.map(lambda _: claim_folder(tmp_path, "version"), range(64)))
    assert sorted(folders) == sorted(tmp_path / f"version_{number}" for number in range(64))


def test_a_folder_that_was_claimed_in_between_is_left_to_its_run(tmp_path, monkeypatch):
    make = Path.mkdir

    def make_second(path, *arguments, **options):
        if path.name == "version_0" and not path.exists():
            make(path)  # by another run, after this one had looked
        make(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", make_second)
    assert claim_folder(tmp_path, "version") == tmp_path / "version_1"


def test_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ValueError, match=r"cannot create a folder in .*runs/digits \(Not a directory\): .* start in"):
        claim_folder(tmp_path / "runs/digits", "version")


@pytest.mark.parametrize("name", ["../../x", "a/b", "/tmp", "..", ".", "", "a\\b", "C:", "a*", "[a]", "a\0"])
def test_an_experiment_is_one_folder_below_runs(name):
    with pytest.raises(ValueError, match="must be the name of one folder"):
        check_experiment(name)


def test_a_name_that_would_be_a_pattern_is_refused_with_its_characters_and_the_option():
    with pytest.raises(ValueError, match=r"\('a\[1\]'\) .*, without /\\:\*\?\[\]: set --experiment$"):
        check_experiment("a[1]")


@pytest.mark.parametrize("name", ["digits", "cifar10_1h", "a b", "Versuch.2", "ü"])
def test_other_names_are_taken(name):
    check_experiment(name)


@pytest.mark.parametrize(("file", "stays"), [("config.yaml", False), ("results.json", True), ("checkpoints/a", True)])
def test_a_folder_without_checkpoint_and_results_is_discarded(tmp_path, file, stays):
    path = tmp_path / "version_0" / file
    path.parent.mkdir(parents=True)
    path.touch()
    discard_if_unused(tmp_path / "version_0")
    assert path.exists() == stays


def test_a_checkpoint_outside_of_a_run_has_no_run_folder():
    assert run_folder_of(Path("downloads/last.ckpt")) is None
    assert run_folder_of(None) is None


@pytest.mark.parametrize(
    ("trainer", "is_same"),
    [
        ({"max_epochs": 3, "max_time": "00:00:10:00"}, True),
        ({"max_epochs": 4, "max_time": "00:00:10:00"}, False),
        ({"max_epochs": 3, "max_time": "00:00:20:00"}, False),
        ({"max_epochs": 3, "max_time": "00:00:10:00", "max_steps": 7}, False),
    ],
)
def test_the_length_of_a_training_is_that_of_its_config(tmp_path, trainer, is_same):
    config = tmp_path / "config.yaml"
    config.write_text('trainer:\n  max_epochs: 3\n  max_time: "00:00:10:00"\n  max_steps: null\n  devices: 2\n')
    assert has_same_length(config, trainer | {"devices": 1}) == is_same


def test_a_folder_that_does_not_exist_is_as_writable_as_the_one_above_it(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(folders, "os", SimpleNamespace(W_OK=os.W_OK, access=lambda path, _: asked.append(path)))
    assert not folders.is_writable(tmp_path / "version_0/evaluations")
    assert asked == [tmp_path]
