"""What a checkpoint brings to a command line."""

import pytest
import torch

import vit
from tests.tiny import CPU
from vit.commands.defaults import read_defaults
from vit.commands.typed_arguments import read_typed


@pytest.fixture
def of_folder(finished) -> str:
    """A checkpoint that was trained on the folder ``photos``."""
    path = finished / "checkpoints/last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["data"] = {"class_path": "vit.data.ImageFolder", "init_args": {"root": "photos", "batch_size": 7}}
    torch.save(checkpoint, path)
    return str(path)


@pytest.mark.parametrize(
    ("typed", "root"),
    [([], "photos"), (["--data", "ImageFolder"], "photos"), (["--data", "ImageTable", "--data.table", "t.csv"], None)],
    ids=["no data", "the same", "others"],
)
def test_the_folder_of_the_training_is_not_that_of_other_data(of_folder, typed, root):
    defaults = read_defaults(read_typed(["test", "--ckpt_path", of_folder, *typed]))
    arguments = defaults.arguments["data"]["init_args"]
    assert (arguments.get("root"), arguments["batch_size"]) == (root, 7)


@pytest.mark.parametrize(
    ("typed", "are_kept"),
    [
        ([], True),
        (["--data.root", "../{here}/photos"], True),
        (["--data.root", "others"], False),
        (["--data", "ImageTable", "--data.table=t.csv"], False),
        (["--config", "others.yaml"], False),
    ],
    ids=["no data", "the same", "another folder", "another kind", "another folder in a config"],
)
def test_the_folds_of_the_training_are_not_those_of_other_images(of_folder, folder, capsys, typed, are_kept):
    checkpoint = torch.load(of_folder, weights_only=True)
    checkpoint["data"]["init_args"] |= {"folds": 5, "fold": 1}
    torch.save(checkpoint, of_folder)
    (folder / "others.yaml").write_text("data: {class_path: ImageFolder, init_args: {root: others}}")
    typed = [word.format(here=folder.name) for word in typed]
    arguments = read_defaults(read_typed(["test", "--ckpt_path", of_folder, *typed])).arguments["data"]["init_args"]
    assert (arguments.get("folds"), arguments.get("fold")) == ((5, 1) if are_kept else (None, None))
    said = "" if are_kept else f"note: the folds of {of_folder} are left out, as these are other images: for a copy of "
    assert capsys.readouterr().err[: len(said) or None] == said
    read_defaults(read_typed(["test", "--ckpt_path", of_folder, *typed, "--data.folds", "5", "--data.fold", "1"]))
    assert capsys.readouterr().err == ""


def test_folds_of_data_that_are_downloaded_hold_in_every_folder(of_folder):
    checkpoint = torch.load(of_folder, weights_only=True)
    checkpoint["data"] = {"class_path": "vit.data.CIFAR10", "init_args": {"root": "data", "folds": 5, "fold": 1}}
    torch.save(checkpoint, of_folder)
    typed = read_typed(["test", "--ckpt_path", of_folder, "--data.root", "elsewhere"])
    assert read_defaults(typed).arguments["data"]["init_args"]["fold"] == 1


def test_a_table_that_is_missing_is_asked_for(error_of, of_folder):
    answer = error_of("test", "--ckpt_path", of_folder, "--data", "ImageTable")
    assert answer == "error: an argument is missing: add --data.table, for ImageTable"


def test_a_model_normalises_a_data_set_without_that_option_as_the_images_of_its_training(run, of_folder):
    checkpoint = torch.load(of_folder, weights_only=True)
    checkpoint["hyper_parameters"] |= {"mean": [0.449], "std": [0.226]}
    torch.save(checkpoint, of_folder)
    tested = run("test", "--ckpt_path", of_folder, "--data", "Digits", *CPU)
    assert (tested.model.hparams.mean, tested.model.hparams.std) == ([0.449], [0.226])
    image = tested.datamodule.sets["test"].images[:1]
    network = vit.load(of_folder).eval()
    with torch.no_grad():
        expected = network((image / 255 - 0.449) / 0.226)
        torch.testing.assert_close(tested.model.eval()(image), expected)
