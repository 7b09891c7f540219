"""The command line: fit, validate, test and predict, and the folder of a run."""

import csv
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from lightning.pytorch.callbacks import ProgressBar
from PIL import Image

import train
import vit
from tests.forked import forked
from tests.tiny import CPU, MODEL, TINY, run_command
from vit.commands.trainer_settings import run_callbacks
from vit.commands.training_cli import ViTCLI
from vit.objectives import OBJECTIVES, ViTClassifier
from vit.runs.checkpoints import RunCheckpoint
from vit.runs.predictions import PredictionWriter
from vit.runs.record import RunRecord
from vit.runs.run_pictures import RunPictures
from vit.runs.tested_images import PerImageTable
from vit.support.arguments import constructor_arguments
from vit.training.seeded_steps import SeededSteps
from vit.training.stop_at_nan import StopAtNaN

PICTURES = {
    f"{name}.png" for name in ("curves", "confusion_matrix", "per_class", "roc", "reliability", "mistakes", "attention")
}


def results(run_folder) -> dict:
    return json.loads((run_folder / "results.json").read_text())


def weights(run_folder) -> dict[str, torch.Tensor]:
    return torch.load(run_folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def change_checkpoint(path, change) -> None:
    checkpoint = torch.load(path, weights_only=True)
    change(checkpoint)
    torch.save(checkpoint, path)


def test_a_run_leaves_a_complete_record(finished):
    record = results(finished)
    assert (record["epochs"], record["steps"], record["seed"], record["data"]) == (1.85, 24, 3, "Digits")
    assert record["command"].startswith("python train.py fit --data Digits ")
    assert record["date"].endswith("+00:00")
    assert record["finished"] is True
    assert 0 <= record["test_accuracy"] <= 1
    assert min(record["images_per_second"], record["seconds"]) > 0
    names = {path.name for path in finished.iterdir()}
    assert names >= PICTURES | {"config.yaml", "metrics.csv", "test_images.csv", "checkpoints", "report.html"}
    assert not any(name.startswith("events.out.tfevents") for name in names)  # TensorBoard is an extra
    assert {path.name for path in (finished / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    for name in PICTURES:
        Image.open(finished / name).verify()
    rows = list(csv.DictReader((finished / "metrics.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows if row["val_accuracy"]] == ["0", "1"]
    assert all(float(row["lr"]) > 0 for row in rows if row["train_loss"])


def test_the_config_of_a_run_repeats_it_to_the_last_bit(run, finished, folder):
    run("fit", "--config", finished / "config.yaml", "--experiment", "copy")
    copied = folder / "runs/copy/version_0"
    assert results(copied)["test_accuracy"] == results(finished)["test_accuracy"]
    assert all(torch.equal(tensor, weights(finished)[name]) for name, tensor in weights(copied).items())


def test_a_second_run_gets_its_own_folder_and_another_seed_other_weights(run, finished):
    run("fit", *TINY, "--experiment", "tiny", "--seed_everything", "4", "--trainer.limit_test_batches", "0")
    second = finished.parent / "version_1"
    assert {path.name for path in finished.parent.iterdir()} == {"version_0", "version_1"}
    assert not torch.equal(weights(second)["network.head.weight"], weights(finished)["network.head.weight"])
    assert results(second)["test_accuracy"] is None


def test_several_configs_are_merged_and_the_last_one_wins(run, folder):
    (folder / "first.yaml").write_text("data: {class_path: Digits}\nmodel: {depth: 3, embed_dim: 8, num_heads: 2}\n")
    (folder / "second.yaml").write_text("model: {depth: 1, patch_size: 8}\n")
    command = ["fit", "--config", "first.yaml", "--config", "second.yaml", "--trainer.fast_dev_run", "true"]
    cli = run(*command, "--trainer.accelerator", "cpu")
    assert (len(cli.model.network.blocks), cli.model.network.embed_dim, cli.model.network.patch_embed.num_patches) == (
        1,
        8,
        1,
    )
    assert not (folder / "runs").exists()  # as after any fast_dev_run


def test_typed_options_overrule_a_config_and_come_before_or_after_their_class(run, capsys):
    other = ["--trainer.max_steps", "-1", "--data.root", "photos", "--data=ImageFolder", "--data.batch_size", "7"]
    for arguments in ([*other, "--config", "digits"], ["--config", "digits", *other]):
        with pytest.raises(SystemExit):
            run("fit", *arguments, "--print_config")
        config = yaml.safe_load(capsys.readouterr().out)
        assert (config["data"]["class_path"], config["trainer"]["max_steps"]) == ("vit.data.ImageFolder", -1)
        assert [config["data"]["init_args"][name] for name in ("root", "batch_size")] == ["photos", 7]


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (["--trainer.enable_checkpointing", "false"], "enable_checkpointing false keeps none"),
        (["--trainer.limit_val_batches", "0"], "no validation chooses the best weights"),
        (["--data.val_fraction", "0"], "no validation chooses the best weights"),
    ],
)
def test_best_weights_that_no_run_would_keep_are_refused_before_the_training(error_of, folder, option, reason):
    assert f"test_weights is best, and {reason}" in error_of("fit", *TINY, "--test_weights", "best", *option)
    assert not (folder / "runs").exists()


def test_print_config_prints_the_arguments_of_the_run(run, capsys):
    with pytest.raises(SystemExit) as stopped:
        run("fit", *TINY, "--print_config")
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert "class_path: vit.data.Digits" in printed
    assert "embed_dim: 8" in printed


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=lambda objective: objective.__name__)
def test_help_describes_every_argument_of_an_objective_and_its_model(run, capsys, monkeypatch, objective):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        run("fit", "--model.help", objective.__name__)
    printed = " ".join(capsys.readouterr().out.split())
    classes = [*objective.__mro__, *([vit.VisionTransformer] if objective.encoder else [])]
    texts = "\n".join(cls.__doc__ or "" for cls in classes if cls.__module__.startswith("vit."))
    chosen = {"num_classes", "fc_norm", *objective.from_data, "vit_kwargs"}
    for name in constructor_arguments(*(cls for cls in classes if cls.__module__.startswith("vit."))) - chosen:
        first_words = re.search(rf"^ +{name}: (\S+ \S+ \S+)", texts, re.MULTILINE)[1]
        assert re.search(rf"--model\.{name}[ ,].{{0,400}}{re.escape(first_words)}", printed), name


def test_help_names_the_help_of_model_and_data(run, capsys):
    with pytest.raises(SystemExit):
        run("fit", "--help")
    assert "--model.help ViTClassifier" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("asked", [["-h"], ["--help"], ["--model.help", "ViTClassifier"], ["--data.help=CIFAR10"]])
@pytest.mark.parametrize("command", ["test", "predict"])
def test_help_needs_no_checkpoint(run, capsys, command, asked):
    with pytest.raises(SystemExit) as status:
        run(command, *asked)
    assert status.value.code == 0
    assert "usage" in capsys.readouterr().out.lower()


def test_help_explains_last_and_best(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        run("fit", "--help")
    printed = " ".join(capsys.readouterr().out.split())
    assert '"last" or "best" for the checkpoint of the newest run' in printed


def test_a_profiler_shows_its_table_and_frameworks_no_notices(run, capsys, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "handlers", [caplog.handler])
    run("fit", *TINY, "--trainer.profiler", "simple", "--trainer.max_steps", "1", "--trainer.limit_test_batches", "0")
    assert "run_training_batch" in caplog.text
    assert "TPU available" not in caplog.text
    printed = capsys.readouterr()
    assert "number of training batches" not in printed.out + printed.err


def test_what_is_built_in_python_and_trained_there_leaves_earlier_runs_as_they_are(run, folder):
    short = ["--trainer.max_steps", "1", "--data.val_fraction", "0", "--trainer.limit_test_batches", "0"]
    run("fit", *TINY, *short)
    before = (folder / "runs/digits/version_0/results.json").read_bytes()
    built = train.main([*TINY, *short], run=False)
    built.trainer.fit(built.model, built.datamodule)
    assert (folder / "runs/digits/version_0/results.json").read_bytes() == before
    assert (folder / "runs/digits/version_1/results.json").exists()


def test_a_run_without_a_config_is_named_after_its_data(run, folder):
    for name in ("train/cat", "train/dog"):
        (folder / "pets" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / "pets" / name / f"{number}.png")
    short = ["--trainer.max_steps", "1", "--data.val_fraction", "0"]
    run("fit", "--data", "ImageFolder", "--data.root", "pets", *short, *MODEL, *CPU)
    run("fit", *TINY, *short)
    assert {path.name for path in (folder / "runs").iterdir()} == {"pets", "digits"}


def test_the_data_sizes_the_model(finished):
    model = vit.load(finished / "checkpoints/last.ckpt")
    assert (model.num_classes, model.patch_embed.image_size, model.patch_embed.in_channels) == (10, (8, 8), 1)


@pytest.mark.parametrize("command", ["test", "validate"])
def test_a_checkpoint_is_evaluated_without_a_config_and_gives_the_same_number(run, finished, command):
    before = results(finished)
    cli = run(command, "--ckpt_path", finished / "checkpoints/last.ckpt", "--trainer.accelerator", "cpu")
    name = {"test": "test_accuracy", "validate": "val_accuracy"}[command]
    assert cli.trainer.callback_metrics[name].item() == pytest.approx(before[name])
    assert results(finished) == before
    assert results(finished / f"evaluations/{command}_last_0")[name] == pytest.approx(before[name])


@pytest.mark.usefixtures("pictures")
def test_an_evaluation_has_a_record_of_its_own_and_leaves_that_of_the_training(run, finished, folder):
    before = {path.name: path.read_bytes() for path in finished.iterdir() if path.is_file()}
    shown = folder / "shown"
    for digit in "0123456789":
        (shown / "train" / digit).mkdir(parents=True)
        Image.new("L", (8, 8), 200).save(shown / "train" / digit / "0.png")
    (shown / "test").symlink_to("train")
    other = ["--data", "ImageFolder", "--data.root", shown, "--data.val_fraction", "0"]
    for number in range(2):
        run("test", "--ckpt_path", "best", "--experiment", "tiny", *CPU, *other)
        evaluation = finished / f"evaluations/test_best_{number}"
        record = results(evaluation)
        assert (record["split"], record["data"]) == ("test", f"ImageFolder {shown}")
        assert record["checkpoint"] == "runs/tiny/version_0/checkpoints/best.ckpt"
        assert record["test_accuracy"] == 0.1  # ten images that are all alike
        assert record["inventory"][0] == f"images of 10 classes in {shown}: 10 train, 10 test"
        assert "identical images in several classes, of which at most one is right: 1 (" in (
            (evaluation / "report.html").read_text()
        )
        assert not {"epochs", "seconds", "finished"} & record.keys()
        assert {path.name for path in evaluation.iterdir()} >= {"confusion_matrix.png", "mistakes.png", "attention.png"}
    assert {path.name: path.read_bytes() for path in finished.iterdir() if path.is_file()} == before


def test_the_record_of_a_checkpoint_outside_of_a_run_is_below_runs(run, finished, folder):
    (finished / "checkpoints/last.ckpt").rename(folder / "mine.ckpt")
    run("test", "--ckpt_path", "mine.ckpt", *CPU, "--experiment", "borrowed")
    assert results(folder / "runs/borrowed/evaluations/test_mine_0")["checkpoint"] == "mine.ckpt"


def test_the_record_of_a_run_of_another_user_is_below_the_own_runs(run, finished, folder, monkeypatch):
    finished.rename(folder / "theirs")
    monkeypatch.setattr("vit.commands.run_place.is_writable", lambda path: "theirs" not in str(path))
    run("test", "--ckpt_path", "theirs/checkpoints/last.ckpt", *CPU, "--experiment", "borrowed")
    assert results(folder / "runs/borrowed/evaluations/test_last_0")["test_accuracy"] is not None
    assert not (folder / "theirs/evaluations").exists()


def test_the_digest_of_the_tested_weights_is_that_of_the_file_as_it_was_read(run, finished, monkeypatch):
    path = finished / "checkpoints/last.ckpt"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()

    def read_and_replace(path):
        contents = vit.weights.read_checkpoint(path)
        path.write_bytes(b"what the training writes next")
        return contents

    monkeypatch.setattr("vit.commands.training_cli.read_checkpoint", read_and_replace)
    run("test", "--ckpt_path", "last", *CPU)
    assert results(finished / "evaluations/test_last_0")["tested_sha256"] == digest


def test_test_views_of_the_checkpoint_are_the_default_of_a_test_and_change_no_other_accuracy(run, finished):
    before = results(finished)
    assert before["test_views"] == "six"
    assert 0 < before["test_accuracy_views"] <= 1
    run("test", "--ckpt_path", "last", "--experiment", "tiny", *CPU)
    cli = run("test", "--ckpt_path", "last", "--experiment", "tiny", *CPU, "--model.test_views", "none")
    assert "test_accuracy_views" not in cli.trainer.callback_metrics
    six, none = (results(finished / f"evaluations/test_last_{number}") for number in range(2))
    names = ("test_accuracy", "test_accuracy_views", "test_views")
    assert [six[name] for name in names] == [before[name] for name in names]
    assert [none[name] for name in names] == [before["test_accuracy"], None, "none"]


def test_a_run_from_before_there_were_views_is_tested(run, finished):
    def age(checkpoint):
        del checkpoint["hyper_parameters"]["test_views"], checkpoint["data"]["init_args"]["mix_until"]

    path = finished / "checkpoints/last.ckpt"
    change_checkpoint(path, age)
    run("test", "--ckpt_path", path, *CPU, "--trainer.fast_dev_run", "true")
    assert not (finished / "evaluations").exists()
    run("test", "--ckpt_path", path, *CPU)
    assert results(finished / "evaluations/test_last_0")["test_views"] == "none"


def test_the_test_of_a_training_takes_the_best_weights_on_request(run, folder, monkeypatch):
    monkeypatch.setattr("vit.runs.checkpoints.RunCheckpoint.check_monitor_top_k", lambda self, *_: first(self))

    def first(callback) -> bool:  # the first validation is the best
        return callback.best_model_score is None

    run("fit", *TINY, "--experiment", "best", "--test_weights", "best")
    run_folder = folder / "runs/best/version_0"
    run("test", "--ckpt_path", "best", "--experiment", "best", *CPU)
    run("test", "--ckpt_path", "last", "--experiment", "best", *CPU)
    best, last = (results(run_folder / f"evaluations/test_{name}_0") for name in ("best", "last"))
    assert results(run_folder)["test_accuracy"] == best["test_accuracy"] != last["test_accuracy"]
    assert results(run_folder)["test_weights"] == "best"
    rows = csv.DictReader((run_folder / "metrics.csv").read_text().splitlines())
    validated = [row["val_accuracy"] for row in rows if row["val_accuracy"]]
    assert validated[0] != validated[-1]
    assert results(run_folder)["val_accuracy"] == pytest.approx(float(validated[0]))


def test_a_resumed_run_keeps_the_arguments_of_the_run_except_for_those_typed(run, finished, folder, monkeypatch):
    rates, step = [], torch.optim.AdamW.step

    def noting_step(optimizer, *args, **kwargs):
        rates.append([group["lr"] for group in optimizer.param_groups])
        return step(optimizer, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", noting_step)
    typed = ["--model.lr", "0.123", "--model.weight_decay", "0.4", "--model.betas", "[0.5,0.6]"]
    typed += ["--model.decay", "linear", "--model.warmup", "0", "--trainer.max_epochs", "4"]
    cli = run("fit", "--ckpt_path", "last", *typed)
    assert (cli.model.network.embed_dim, cli.trainer.log_every_n_steps) == (8, 5)
    record = results(folder / "runs/tiny/version_1")
    assert (record["seed"], record["epochs"]) == (3, 3.71)
    groups = cli.trainer.optimizers[0].param_groups
    assert {group["weight_decay"] for group in groups} == {0.4, 0.0}
    assert {tuple(group["betas"]) for group in groups} == {(0.5, 0.6)}
    # Half of the 48 steps are done, and the rate falls to zero over the other half.
    assert all(len(set(each)) == 1 for each in rates)
    assert [each[0] for each in rates] == pytest.approx([0.123 * (1 - step / 48) for step in range(24, 48)])


@pytest.mark.parametrize(
    ("option", "value", "was"),
    [("optimizer", "muon", "'adamw'"), ("layer_decay", "0.5", "None"), ("freeze", "1", "None")],
)
def test_a_state_of_the_optimizer_that_does_not_fit_is_one_line(error_of, finished, option, value, was):
    line = error_of("fit", "--ckpt_path", "last", f"--model.{option}", value, "--trainer.max_epochs", "4")
    assert f"was trained with {option} {was}, whose state does not fit {option}" in line
    assert line.endswith(f"leave --model.{option} as it was")


def test_a_training_goes_on_without_weight_decay(run, finished, folder):
    cli = run("fit", "--ckpt_path", "last", "--model.weight_decay", "0", "--trainer.max_epochs", "4")
    assert {group["weight_decay"] for group in cli.trainer.optimizers[0].param_groups} == {0.0}
    assert results(folder / "runs/tiny/version_1")["steps"] == 2 * results(finished)["steps"]


def test_options_that_this_version_does_not_have_are_left_out(run, finished, capsys):
    def add_options(checkpoint):
        checkpoint["hyper_parameters"]["sharpness"] = 0.05
        checkpoint["data"]["init_args"]["scent"] = "lavender"

    path, before = finished / "checkpoints/last.ckpt", results(finished)
    change_checkpoint(path, add_options)
    run("test", "--ckpt_path", path, *CPU)
    assert results(finished / "evaluations/test_last_0")["test_accuracy"] == before["test_accuracy"]
    printed = capsys.readouterr().err
    for name in ("sharpness", "scent"):
        assert f"the checkpoint was trained with {name}, which this version does not have: left out\n" in printed


def test_a_test_is_in_the_precision_of_the_run_unless_one_is_typed(run, finished):
    test = ["test", "--ckpt_path", finished / "checkpoints/last.ckpt", "--trainer.accelerator", "cpu"]
    before = results(finished)
    assert run(*test, "--trainer.precision", "64-true").trainer.precision == "64-true"
    assert results(finished / "evaluations/test_last_0")["precision"] == "64-true"
    (finished / "results.json").write_text(json.dumps(before | {"precision": "bf16-mixed"}))
    assert run(*test, "--trainer.fast_dev_run", "true").trainer.precision == "bf16-mixed"


def test_only_training_compiles(run, finished):
    path = finished / "checkpoints/last.ckpt"
    change_checkpoint(path, lambda checkpoint: checkpoint["hyper_parameters"].update(compile=True))
    cli = run("test", "--ckpt_path", path, *CPU, "--trainer.fast_dev_run", "true")
    assert cli.model.hparams.compile is False


def test_a_precision_plugin_takes_the_place_of_the_precision(run):
    plugin = ["--trainer.plugins+", "lightning.pytorch.plugins.DoublePrecision", "--trainer.fast_dev_run", "true"]
    cli = run("fit", "--data", "Digits", *MODEL, *plugin, "--trainer.accelerator", "cpu")
    assert cli.trainer.precision == "64-true"


@pytest.fixture
def photos(folder):
    """Seven images, and a file that is none."""
    (folder / "photos/nested").mkdir(parents=True)
    sizes = {"a.png": (8, 8), "b.jpg": (31, 17), "c.webp": (5, 64), "d.png": (9, 9)}
    sizes |= {f"nested/{name}.png": (8, 9) for name in "efg"}
    for number, (name, size) in enumerate(sizes.items()):
        Image.new("RGB", size, (200, 30 * number, 200)).save(folder / "photos" / name)
    (folder / "photos/notes.txt").write_text("no image")
    return [f"photos/{name}" for name in sizes]


def rows_of(path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_an_evaluation_keeps_the_memory_that_it_frees(run, finished, monkeypatch):
    kept = []
    monkeypatch.setattr("vit.commands.training_cli.keep_freed_memory", lambda: kept.append(True))
    run("test", "--ckpt_path", finished / "checkpoints/best.ckpt")
    assert kept == [True]


def test_predict_writes_a_row_per_image_and_names_the_files_that_are_not_images(run, finished, photos, capsys):
    Path("photos/broken.png").write_text("no image")
    capsys.readouterr()
    run("predict", "--ckpt_path", finished / "checkpoints/best.ckpt", "--data.root", "photos")
    rows = rows_of(finished / "predictions.csv")
    assert [row["file"] for row in rows] == photos
    for row in rows:
        best = [part.rsplit(" ", 1) for part in row["top5"].split("; ")]
        assert len(best) == 5
        assert [row["class"], row["probability"]] == best[0]
        values = [float(value) for _, value in best]
        assert values == sorted(values, reverse=True)
    printed = capsys.readouterr()
    assert printed.out.startswith("images of photos: 8 files\nleft out: 1\n  1 .txt: no image (notes.txt)\n")
    assert printed.err == "cannot read image photos/broken.png: it is no image\n"


def test_predictions_of_other_data_are_those_of_the_test_images_named_by_their_files(run, finished, folder, capsys):
    for number in range(30):
        place = folder / "digits" / str(number % 10) / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 8 * number).save(place)
    command = ["predict", "--ckpt_path", finished, "--data", "ImageFolder", "--data.root", "digits", *CPU]
    cli = run(*command, "--data.test_fraction", "0.4", "--data.num_workers", "0", "--output", "test.csv")
    assert "10 predictions of the test images in test.csv" in capsys.readouterr().out
    rows = list(csv.DictReader((folder / "test.csv").read_text().splitlines()))
    assert [row["file"] for row in rows] == cli.datamodule.sets["test"].files


def test_a_folder_of_damaged_files_alone_is_an_error_and_leaves_no_table(run, error_of, finished, folder):
    (folder / "damaged").mkdir()
    for name in ("a.png", "b.jpg"):
        (folder / "damaged" / name).write_text("no image")
    typed = ["predict", "--ckpt_path", finished / "checkpoints/last.ckpt", "--data.root", "damaged", *CPU]
    assert error_of(*typed, "--output", "said.csv") == (
        "error: cannot read any of the 2 image files of damaged, and nothing is predicted; the first: cannot read "
        "image damaged/a.png: it is no image"
    )
    assert not [*folder.glob("said.csv*")]


def test_predict_crops_as_the_data_of_the_training_did(run, finished, photos):
    path = finished / "checkpoints/last.ckpt"
    change_checkpoint(path, lambda checkpoint: checkpoint["data"]["init_args"].update(crop_ratio=0.5))
    cli = run("predict", "--ckpt_path", path, "--data.root", "photos", *CPU, "--output", "cropped.csv")
    assert (cli.datamodule.files.image_size, cli.datamodule.files.centre) == ((16, 16), (8, 8))


def test_no_prediction_is_written_over_another(run, error_of, finished, photos):
    predict = ["predict", "--ckpt_path", finished / "checkpoints/best.ckpt", "--data.root"]
    for root in ("photos", "photos/nested", "photos"):
        run(*predict, root)
    counts = {path.name: len(rows_of(path)) for path in finished.glob("predictions*")}
    assert counts == {"predictions.csv": 7, "predictions_1.csv": 3, "predictions_2.csv": 7}
    run(*predict, "photos/nested", "--output", "mine/out.csv")
    assert len(rows_of(Path("mine/out.csv"))) == 3
    assert [path.name for path in Path("mine").iterdir()] == ["out.csv"]
    assert "mine/out.csv exists: add --overwrite, or name another file" in error_of(
        *predict, "photos", "--output", "mine/out.csv"
    )


def test_a_prediction_that_was_killed_is_continued(run, finished, photos, monkeypatch, capsys):
    predict = ["predict", "--ckpt_path", finished / "checkpoints/best.ckpt", "--data.root", "photos"]
    predict += ["--data.batch_size", "2", "--output", "out.csv"]
    predicted, step = [], ViTClassifier.predict_step

    def killed_in_the_third_batch(module, batch, batch_idx):
        if len(predicted) == 4:
            os._exit(9)
        predicted.extend(batch[1])
        return step(module, batch, batch_idx)

    monkeypatch.setattr(ViTClassifier, "predict_step", killed_in_the_third_batch)
    process = forked(Path("killed.txt"), run, *predict)
    process.join()
    assert process.exitcode == 9
    (partial,) = Path().glob("out.csv.*.partial")
    assert [row["file"] for row in rows_of(partial)] == photos[:4]
    partial.write_text(partial.read_text()[:-5])  # as if the kill had cut the last row

    monkeypatch.setattr(ViTClassifier, "predict_step", lambda *args: (predicted.extend(args[1][1]), step(*args))[1])
    run(*predict)
    assert predicted == photos[3:]
    assert "3 rows of out.csv" in capsys.readouterr().out
    resumed = rows_of(Path("out.csv"))
    run(*predict[:-1], "whole.csv")
    assert resumed == rows_of(Path("whole.csv"))
    assert not [*Path().glob("*.partial*")]


def test_a_prediction_of_another_crop_is_not_continued(run, finished, photos, monkeypatch):
    predict = ["predict", "--ckpt_path", finished / "checkpoints/best.ckpt", "--data.root", "photos", *CPU]
    predict += ["--data.batch_size", "2", "--output"]

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PredictionWriter, "on_predict_end", killed)
        with pytest.raises(SystemExit):
            run(*predict, "out.csv")
    assert len([*Path().glob("out.csv.*.partial")]) == 1
    run(*predict, "out.csv", "--data.crop_ratio", "0.5")
    run(*predict, "fresh.csv", "--data.crop_ratio", "0.5")
    assert rows_of(Path("out.csv")) == rows_of(Path("fresh.csv"))


def test_a_prediction_of_a_folder_of_the_same_name_elsewhere_is_not_continued(run, finished, photos, monkeypatch):
    shutil.copytree("photos", "elsewhere/photos")  # before the prediction begins, which would notice later files
    here, path = Path.cwd(), finished.resolve() / "checkpoints/best.ckpt"
    predict = ["predict", "--ckpt_path", path, "--data.root", "photos", *CPU, "--output", here / "out.csv"]

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PredictionWriter, "on_predict_end", killed)
        with pytest.raises(SystemExit):
            run(*predict)
    monkeypatch.chdir("elsewhere")
    run(*predict)
    assert len(rows_of(here / "out.csv")) == 7
    assert len([*here.glob("out.csv.*.partial")]) == 1


def test_two_equal_predictions_at_once_do_not_mix(run, finished, photos, monkeypatch):
    predict = ["predict", "--ckpt_path", finished / "checkpoints/best.ckpt", "--data.root", "photos"]
    refused, step = [], ViTClassifier.predict_step

    def start_another(*arguments):
        process = forked(Path("refused.txt"), run, *predict)
        process.join()
        refused.append(process.exitcode)
        return step(*arguments)

    monkeypatch.setattr(ViTClassifier, "predict_step", start_another)
    run(*predict)
    assert refused == [2]
    assert [row["file"] for row in rows_of(finished / "predictions.csv")] == photos


def test_predictions_are_those_of_the_loaded_backbone_even_if_a_config_names_other_data(run, finished, folder):
    levels = torch.arange(64, dtype=torch.uint8).reshape(8, 8) * 4
    Image.fromarray(levels.numpy()).save(folder / "ramp.png")
    path = finished / "checkpoints/last.ckpt"
    run("predict", "--config", finished / "config.yaml", "--ckpt_path", path, "--data.root", "ramp.png")
    (row,) = rows_of(finished / "predictions.csv")
    model = vit.load(path)
    mean, std = model.pretrained_cfg["mean"][0], model.pretrained_cfg["std"][0]
    with torch.no_grad():
        probabilities = model(((levels / 255 - mean) / std)[None, None]).softmax(1)[0]
    assert row["class"] == model.pretrained_cfg["class_names"][probabilities.argmax()]
    assert float(row["probability"]) == pytest.approx(probabilities.max().item(), abs=1e-4)


def test_a_run_of_steps_that_ends_in_mid_epoch_is_validated_at_its_end(run, folder):
    run("fit", *TINY, "--trainer.max_steps", "5", "--experiment", "steps", "--trainer.precision", "bf16-mixed")
    record = results(folder / "runs/steps/version_0")
    assert (record["steps"], record["precision"]) == (5, "bf16-mixed")
    assert record["val_accuracy"] is not None


def test_a_run_that_ends_before_its_first_validation_has_a_best_checkpoint(run, folder):
    run("fit", *TINY, "--trainer.max_steps", "3", "--experiment", "short", "--test_weights", "best")
    best, last = (folder / f"runs/short/version_0/checkpoints/{name}.ckpt" for name in ("best", "last"))
    assert best.read_bytes() == last.read_bytes()


def test_runs_are_below_the_folder_that_is_asked_for_and_are_found_there(run, error_of, folder):
    elsewhere = ["--trainer.default_root_dir", "mine"]
    run("fit", *TINY, *elsewhere, "--trainer.max_steps", "1", "--trainer.limit_test_batches", "0")
    assert results(folder / "mine/runs/digits/version_0")["steps"] == 1
    assert not (folder / "runs").exists()
    run("test", "--ckpt_path", "last", *CPU, *elsewhere)
    assert results(folder / "mine/runs/digits/version_0/evaluations/test_last_0")["test_accuracy"] is not None
    assert "no checkpoint runs/" in error_of("test", "--ckpt_path", "last", *CPU)
    run("fit", "--ckpt_path", "mine/runs/digits/version_0/checkpoints/last.ckpt", "--trainer.max_steps", "2")
    assert results(folder / "mine/runs/digits/version_1")["steps"] == 2


def test_a_part_of_the_test_images_is_even_over_the_classes_and_named_everywhere(run, finished, capsys):
    test = ["test", "--ckpt_path", "last", "--experiment", "tiny", *CPU, "--trainer.limit_test_batches"]
    for number, (limit, count) in enumerate((("1", 100), ("0.5", 180))):
        labels = run(*test, limit).datamodule.sets["test"].labels
        assert len(labels) == count
        assert max(labels.bincount()) - min(labels.bincount()) <= 2
        evaluation = finished / f"evaluations/test_last_{number}"
        record = results(evaluation)
        assert record["parts"] == {"test": {"images": count, "of": 359}}
        assert record["scores"]["count"] == count
        assert f"{count} of 359 test images" in (evaluation / "report.html").read_text()
        assert f"({count} of 359 test images)" in capsys.readouterr().out


def test_one_batch_is_not_read_as_all_batches_and_the_config_of_the_run_keeps_it(run, folder):
    cli = run("fit", *TINY, "--trainer.max_epochs", "1", "--trainer.limit_train_batches", "1", "--experiment", "one")
    assert cli.trainer.global_step == 1
    config = folder / "runs/one/version_0/config.yaml"
    assert "  limit_train_batches: 1\n" in config.read_text()
    (folder / "one.yaml").write_text(config.read_text())
    assert run("fit", "--config", "one.yaml").trainer.global_step == 1


def test_a_progress_bar_that_is_asked_for_takes_the_place_of_the_own_one(run, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    fit = ["fit", *TINY, "--trainer.fast_dev_run", "true"]
    for arguments, bar in (
        ([], "ImagesPerSecondBar"),
        (["--trainer.callbacks+", "RichProgressBar"], "RichProgressBar"),
    ):
        callbacks = run(*fit, *arguments).trainer.callbacks
        assert [type(callback).__name__ for callback in callbacks if isinstance(callback, ProgressBar)] == [bar]


def test_training_without_validation_images_keeps_the_last_checkpoint(run, folder):
    run("fit", *TINY, "--experiment", "all", "--data.val_fraction", "0", "--trainer.max_epochs", "1")
    assert [path.name for path in (folder / "runs/all/version_0/checkpoints").iterdir()] == ["last.ckpt"]
    assert results(folder / "runs/all/version_0")["val_accuracy"] is None


@pytest.mark.usefixtures("pictures")
def test_ctrl_c_keeps_the_last_checkpoint_and_the_results_and_prints_how_to_resume(folder):
    def train_for_long() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest-xdist may ignore it
        run_command("fit", *TINY, "--trainer.max_epochs", "1000")

    process, run_folder = forked(folder / "output.txt", train_for_long), folder / "runs/digits/version_0"
    while not (run_folder / "checkpoints/last.ckpt").exists():
        assert process.is_alive(), (folder / "output.txt").read_text()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    process.join()
    output = (folder / "output.txt").read_text()
    assert process.exitcode == 130
    assert output.endswith("last.ckpt\nstopped by Ctrl-C\n")
    for name in ("results.json", "curves.png", "report.html"):
        assert (run_folder / name).exists()
    assert "resume with: python train.py fit --ckpt_path runs/digits/version_0/checkpoints/last.ckpt\n" in output
    assert "Traceback" not in output


def test_every_process_finds_the_last_checkpoint_where_lightning_says_it_is(tmp_path):
    folder = tmp_path / "version_3/checkpoints"
    folder.mkdir(parents=True)
    (folder / "last.ckpt").touch()
    best = RunCheckpoint(folder, "best", ViTClassifier.monitor)
    trainer = SimpleNamespace(checkpoint_callbacks=[best], strategy=SimpleNamespace(barrier=lambda: None))
    another = SimpleNamespace(trainer=trainer, run_folder=tmp_path / "version_0")  # which claims no folder
    assert ViTCLI._keep_best(another) is best
    assert best.best_model_path == str(folder / "best.ckpt")


def test_steps_are_seeded_first_and_checkpoints_written_last():
    record = RunRecord(Path("run"), {}, "", {})
    seeded, stop, pictures, written, table, *others = run_callbacks(3, record, ["best", "last"])
    kinds = [SeededSteps, StopAtNaN, RunPictures, PerImageTable]
    assert [type(callback) for callback in (seeded, stop, pictures, table)] == kinds
    assert [written, *others] == [record, "best", "last"]
    assert seeded.seed == 3
