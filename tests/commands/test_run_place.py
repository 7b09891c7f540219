"""Where a run, an evaluation and a prediction write."""

from pathlib import Path

import pytest
from lightning.pytorch.utilities import rank_zero_only
from PIL import Image

import vit
from vit.commands import run_place
from vit.commands.run_place import choose_folder, experiment_name

RUN = Path("runs/first/version_3")
CHECKPOINT = RUN / "checkpoints/last.ckpt"


@pytest.mark.parametrize(
    ("given", "origin", "configs", "name"),
    [
        ("mine", RUN, [Path("configs/digits.yaml")], "mine"),
        (None, RUN, [Path("configs/digits.yaml")], "first"),
        (None, None, [Path("base.yaml"), Path("configs/digits.yaml")], "digits"),
        (None, None, [], "digits"),
    ],
)
def test_the_experiment_is_the_name_that_is_given_or_that_of_the_run_of_the_config_or_of_the_data(
    given, origin, configs, name
):
    assert experiment_name(given, origin, configs, vit.data.Digits()) == name


def test_a_folder_of_images_names_the_experiment(tmp_path):
    (tmp_path / "train/cat").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "train/cat/one.png")
    assert experiment_name(None, None, [], vit.data.ImageFolder(tmp_path)) == tmp_path.name


def test_each_run_makes_the_next_folder_of_its_experiment(tmp_path):
    folders = [choose_folder("fit", "digits", tmp_path, None, claim=True) for _ in range(2)]
    assert folders == [(tmp_path / f"runs/digits/version_{number}", True) for number in range(2)]
    assert all(folder.is_dir() for folder, _ in folders)


def test_an_evaluation_writes_into_the_run_of_its_checkpoint(tmp_path):
    run = tmp_path / RUN
    run.mkdir(parents=True)
    folder, is_new = choose_folder("test", "digits", tmp_path, tmp_path / CHECKPOINT, claim=True)
    assert (folder, is_new) == (run / "evaluations/test_last_0", True)


def test_an_evaluation_of_a_run_that_cannot_be_written_is_in_the_experiment(tmp_path, monkeypatch):
    monkeypatch.setattr(run_place, "is_writable", lambda folder: False)
    folder, _ = choose_folder("validate", "digits", tmp_path, tmp_path / CHECKPOINT, claim=True)
    assert folder == tmp_path / "runs/digits/evaluations/validate_last_0"


def test_a_prediction_has_the_folder_of_its_run_or_the_present_one(tmp_path):
    assert choose_folder("predict", "digits", tmp_path, tmp_path / CHECKPOINT, claim=True) == (tmp_path / RUN, False)
    assert choose_folder("predict", "digits", tmp_path, Path("weights.safetensors"), claim=True) == (Path(), False)


def test_predictions_of_a_run_that_cannot_be_written_are_in_the_present_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(run_place, "is_writable", lambda folder: folder != tmp_path / RUN)
    assert choose_folder("predict", "digits", tmp_path, tmp_path / CHECKPOINT, claim=True) == (Path(), False)


def test_code_that_builds_without_a_subcommand_makes_no_folder(tmp_path):
    choose_folder("fit", "digits", tmp_path, None, claim=True)
    folder, is_new = choose_folder(None, "digits", tmp_path, None, claim=True)
    assert (folder, is_new, folder.exists()) == (tmp_path / "runs/digits/version_1", False, False)


def test_other_processes_than_the_first_make_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    folder, is_new = choose_folder("fit", "digits", tmp_path, None, claim=True)
    assert (is_new, folder.exists()) == (False, False)


def test_a_name_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="experiment"):
        choose_folder("fit", "../other", tmp_path, None, claim=True)
