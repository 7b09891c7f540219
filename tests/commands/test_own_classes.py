"""Data modules, models and optimisers that a user brings along by their names."""

import csv
import json
import sys
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

import vit
from tests.tiny import CPU, MODEL, TINY, run_command
from tests.user_classes import MEAN, STD, Mine
from vit.commands import explain
from vit.commands.own_classes import find_own, part_of_run
from vit.objectives import ViTClassifier
from vit.training.objective import Objective

SHORT = [*MODEL, *CPU, "--trainer.max_epochs", "2", "--trainer.log_every_n_steps", "5"]
DATA = ["--data", "tests.user_classes.OwnData"]


def record_of(folder):
    return json.loads((folder / "results.json").read_text())


def rows_of(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


# data


@pytest.fixture(scope="module")
def own(module_folder, no_pictures):
    """The folder of a run with a data module, a model and batches of a user's own."""
    run_command(
        "fit", *DATA, "--data.as_dicts", "true", "--model", "tests.user_classes.Mine", *SHORT, "--experiment", "own"
    )
    return module_folder / "runs/own/version_0"


def test_a_data_module_of_the_user_trains_and_tells_what_the_model_needs(own):
    record = record_of(own)
    assert (record["data"], record["objective"], record["epochs"], record["finished"]) == ("OwnData", "Mine", 2.0, True)
    assert record["scores"]["count"] == 359
    assert [each["name"] for each in record["scores"]["classes"]][:2] == ["0", "1"]
    hyper = torch.load(own / "checkpoints/last.ckpt", weights_only=True)["hyper_parameters"]
    assert (hyper["mean"], hyper["std"], hyper["num_classes"]) == ([MEAN], [STD], 10)
    assert "<h1" in (own / "report.html").read_text()
    rows = rows_of(own / "test_images.csv")
    assert [row["file"] for row in rows[:2]] == ["0", "1"]
    assert len(rows) == 359


def test_the_scores_are_those_of_the_same_images_by_our_data_module(own, run, monkeypatch):
    monkeypatch.chdir(own.parents[2])
    run("test", "--ckpt_path", own, "--data", "Digits", "--model", "tests.user_classes.Mine")
    ours, theirs = record_of(own / "evaluations/test_last_0"), record_of(own)
    assert ours["test_accuracy"] == theirs["test_accuracy"]
    assert ours["scores"]["loss"] == pytest.approx(theirs["scores"]["loss"], rel=1e-5)


def test_it_is_tested_validated_predicted_resumed_and_explained_by_the_name_of_its_run(own, run, monkeypatch, capsys):
    monkeypatch.chdir(own.parents[2])
    for command, score in (("test", "test_accuracy"), ("validate", "val_accuracy")):
        run(command, "--ckpt_path", own)
        assert record_of(own / f"evaluations/{command}_last_0")[score] == record_of(own)[score]
    run("predict", "--ckpt_path", own, *DATA, *CPU, "--output", "own.csv")
    rows, tested = rows_of(Path("own.csv")), rows_of(own / "test_images.csv")
    assert [row["file"] for row in rows] == [str(number) for number in range(359)]
    assert [row["class"] for row in rows] == [row["class"] for row in tested]
    run("fit", "--ckpt_path", own, "--trainer.max_epochs", "3")
    assert record_of(own.parent / "version_1")["epochs"] == 3.0
    assert vit.load(own / "checkpoints/last.ckpt").pretrained_cfg["mean"] == [MEAN]
    Image.new("L", (8, 8), 90).save("grey.png")
    explain.main(["grey.png", "--checkpoint", str(own), "--out", "maps"])
    assert Path("maps/sheet.png").exists()


def test_a_run_with_data_of_the_user_that_is_resumed_ends_with_the_same_weights(run, monkeypatch):
    def save_first(module):
        if module.trainer.current_epoch == 0:
            module.trainer.save_checkpoint("first.ckpt")

    command = ["fit", *DATA, *SHORT, "--experiment", "same"]
    with monkeypatch.context() as patch:
        patch.setattr(ViTClassifier, "on_train_epoch_end", save_first)
        run(*command)
    run(*command, "--ckpt_path", "first.ckpt")
    whole, resumed = (
        torch.load(f"runs/same/version_{version}/checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for version in (0, 1)
    )
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_what_a_data_module_does_not_tell_is_asked_for_in_one_line(error_of):
    line = error_of("fit", "--data", "tests.user_classes.Bare", *SHORT)
    assert "Bare has no image_size, in_channels, num_classes: add --model.image_size 32 --model.in_channels 3" in line


TOLD = ["--model.image_size", "8", "--model.in_channels", "1", "--model.num_classes", "10"]


def test_the_normalisation_is_asked_for_at_the_first_batch(error_of):
    line = error_of("fit", "--data", "tests.user_classes.Bare", *SHORT, *TOLD)
    assert "so they are normalised, and their mean and std are not known: set the attributes mean and std" in line


def test_what_it_does_not_tell_is_typed_and_noted_in_the_config(run, folder):
    typed = [*TOLD, "--model.mean", f"[{MEAN}]", "--model.std", f"[{STD}]"]
    run("fit", "--data", "tests.user_classes.Bare", *SHORT, *typed, "--experiment", "bare", "--trainer.max_steps", "2")
    noted = yaml.safe_load((folder / "runs/bare/version_0/config.yaml").read_text())["model"]["init_args"]
    assert (noted["num_classes"], noted["mean"], noted["image_size"]) == (10, [MEAN], 8)
    run("fit", "--config", "runs/bare/version_0/config.yaml", "--experiment", "again")
    first, second = (record_of(folder / f"runs/{name}/version_0") for name in ("bare", "again"))
    assert first["test_accuracy"] == second["test_accuracy"]


def test_the_config_of_a_run_does_not_tell_what_its_data_told(run, folder):
    run("fit", *DATA, *SHORT, "--trainer.max_epochs", "1", "--experiment", "digits")
    config = folder / "runs/digits/version_0/config.yaml"
    noted = yaml.safe_load(config.read_text())["model"]["init_args"]
    assert not noted.keys() & {"num_classes", "class_names", "mean", "std", "image_size", "in_channels"}
    other = run("fit", "--config", config, "--data", "tests.user_classes.Letters", "--trainer.max_steps", "1", *CPU)
    assert other.model.hparams.class_names == list("abcdefghij")
    again = run("fit", "--ckpt_path", "runs/digits/version_0", "--trainer.max_epochs", "2")
    assert again.model.hparams.class_names == list("0123456789")


def test_weights_tell_the_normalisation_that_a_data_module_does_not(run, folder):
    sizes = {"image_size": 8, "in_channels": 1, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2}
    model = vit.VisionTransformer(**sizes, num_classes=10)
    model.pretrained_cfg = {"mean": [0.3], "std": [0.4], "class_names": list("abcdefghij")}
    vit.save(model, "m.safetensors")
    tested = run("test", "--ckpt_path", "m.safetensors", "--data", "tests.user_classes.Unsaid", *CPU)
    hyper = tested.model.hparams
    assert (hyper.mean, hyper.std, hyper.class_names) == ([0.3], [0.4], list("abcdefghij"))


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (["--data", "nowhere.Data"], "no module nowhere for nowhere.Data: add its folder to PYTHONPATH"),
        (["--data", "tests.user_classes.Nothing"], "tests.user_classes has no class Nothing"),
        (
            ["--data", "tests.user_classes.Rows"],
            "tests.user_classes.Rows is no LightningDataModule: derive it from one",
        ),
        (
            ["--model", "tests.user_classes.OwnData", "--data", "Digits"],
            "tests.user_classes.OwnData is no Objective: derive it",
        ),
        ([*DATA, "--data.root", "x"], "--data.root is an option of CIFAR10, CIFAR100"),
        ([*DATA, "--model", "ImageCompleter"], "gets them from data modules of vit.data, not from a OwnData"),
        (
            [*DATA, "--model", "MultilabelClassifier", "--model.positive_weights", "balanced"],
            "positive_weights balanced counts the labels of all training images",
        ),
        ([*DATA, "--model.num_classes", "5"], "a label is 9, and the classes are 0 to 4: set --model.num_classes 10"),
    ],
)
def test_what_is_wrong_with_a_class_is_one_line(error_of, typed, answer):
    assert answer in error_of("fit", *SHORT, *typed)


# models


def test_a_subclass_takes_the_place_of_the_model_of_a_config(run, folder):
    config = folder / "small.yaml"
    config.write_text(
        "data: {class_path: Digits}\nmodel: {patch_size: 4, embed_dim: 8, depth: 1, num_heads: 2, lr: 0.01}\n"
    )
    cli = run("fit", "--config", config, "--model", "tests.user_classes.Mine", *CPU, "--trainer.fast_dev_run", "true")
    assert type(cli.model) is Mine
    assert (cli.model.hparams.lr, cli.model.hparams.share, cli.model.network.embed_dim) == (0.01, 0.5, 8)


def test_the_class_of_a_checkpoint_outside_of_its_run_has_to_be_typed(own, run, error_of, folder):
    alone = folder / "alone.ckpt"
    alone.write_bytes((own / "checkpoints/last.ckpt").read_bytes())
    line = error_of("test", "--ckpt_path", alone, "--data", "Digits")
    assert "alone.ckpt is of a 'Mine', which is none of ViTClassifier" in line
    assert "add its class by --model, such as --model mymodule.Mine" in line
    run("test", "--ckpt_path", alone, "--data", "Digits", "--model", "tests.user_classes.Mine", "--experiment", "alone")
    assert next(folder.glob("runs/alone/evaluations/*/results.json")).exists()


def test_a_name_in_a_checkpoint_imports_nothing(own, error_of, folder):
    (folder / "planted.py").write_text("raise SystemExit('imported')")
    checkpoint = torch.load(own / "checkpoints/last.ckpt", weights_only=True)
    checkpoint |= {"module": "planted.Model", "data": {"class_path": "planted.Data", "init_args": {}}}
    torch.save(checkpoint, folder / "forged.ckpt")
    sys.path.insert(0, str(folder))
    try:
        line = error_of("test", "--ckpt_path", "forged.ckpt", "--data", "Digits")
    finally:
        sys.path.remove(str(folder))
    assert "forged.ckpt is of a 'planted.Model'" in line
    assert "planted" not in sys.modules


def test_a_class_is_found_by_its_path_or_by_its_name_if_it_is_imported():
    assert find_own("tests.user_classes.Mine", Objective) is Mine
    assert find_own("Mine", Objective) is Mine
    assert find_own("OwnData", torch.nn.Module) is None
    assert find_own("vit.objectives.ViTClassifier", Objective) is None
    assert find_own(None, Objective) is None


def test_the_config_of_a_run_is_read_only_beside_its_checkpoint(own, tmp_path):
    assert part_of_run(own / "checkpoints/last.ckpt", "data")["class_path"] == "tests.user_classes.OwnData"
    assert part_of_run(tmp_path / "last.ckpt", "data") == {}


# optimisers


@pytest.mark.parametrize("name", ["Plain", "Reused", "OneCycle", "Manual"])
def test_an_optimiser_of_the_user_trains_from_the_command_line(run, folder, name):
    unclipped = ["--trainer.gradient_clip_val", "null"] if name == "Manual" else []  # which steps by itself
    cli = run("fit", *TINY, *unclipped, "--model", f"tests.user_classes.{name}", "--experiment", name)
    record = record_of(folder / f"runs/{name}/version_0")
    assert record["finished"]
    assert cli.model.progress == 1.0


def test_an_objective_of_the_user_is_trained_tested_and_resumed_by_the_name_of_its_run(run, folder):
    run("fit", *TINY, "--model", "tests.objectives.toy.Brightness", "--experiment", "toy")
    record = record_of(folder / "runs/toy/version_0")
    assert (record["objective"], record["finished"]) == ("Brightness", True)
    run("test", "--ckpt_path", "runs/toy/version_0")
    again = record_of(folder / "runs/toy/version_0/evaluations/test_last_0")
    assert again["test_error"] == record["test_error"]
    run("fit", "--ckpt_path", "runs/toy/version_0", "--trainer.max_epochs", "3")
    assert record_of(folder / "runs/toy/version_1")["epochs"] > record["epochs"]


def test_an_optimiser_of_timm_is_taken_by_its_path(run, folder):
    import timm

    cli = run("fit", *TINY, "--optimizer", "timm.optim.Lamb", "--optimizer.lr", "0.01", "--experiment", "lamb")
    assert type(cli.trainer.optimizers[0]) is timm.optim.Lamb
    assert record_of(folder / "runs/lamb/version_0")["finished"]


def test_optimizer_and_lr_scheduler_are_taken_as_lightning_has_them_and_resumed(run, folder, capsys):
    asked = ["--optimizer", "SGD", "--optimizer.lr", "0.1", "--lr_scheduler", "StepLR", "--lr_scheduler.step_size", "1"]
    cli = run("fit", *TINY, *asked, "--lr_scheduler.gamma", "0.5", "--experiment", "sgd")
    assert "--optimizer replaces --model.optimizer, --model.lr" in capsys.readouterr().out
    assert type(cli.trainer.optimizers[0]) is torch.optim.SGD
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.025)
    cli = run("fit", "--ckpt_path", "runs/sgd/version_0", "--trainer.max_epochs", "3")
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0125)


def test_a_schedule_without_an_optimiser_names_its_option(error_of):
    assert "it is --model.decay and --model.warmup" in error_of("fit", *TINY, "--lr_scheduler", "StepLR")
