"""The command line as a user meets it: fit, validate, test and predict, and the folder that a run leaves."""

import csv
import json
import os
from pathlib import Path

import pytest
import torch
from PIL import Image

import vit
from vit.training.runs import newest_checkpoint

TINY = [
    *("--data", "Digits", "--data.batch_size", "100", "--model.patch_size", "4", "--model.embed_dim", "8"),
    *("--model.depth", "2", "--model.num_heads", "2", "--trainer.accelerator", "cpu"),
    *("--trainer.precision", "32-true", "--trainer.log_every_n_steps", "5", "--trainer.max_epochs", "2"),
]
PLAIN = ["--trainer.accelerator", "cpu", "--trainer.precision", "32-true"]
RESULTS = {
    *("test_accuracy", "val_accuracy", "epochs", "seconds", "images_per_second", "parameters", "seed"),
    *("command", "device", "torch"),
}
PICTURES = {"curves.png", "confusion_matrix.png", "mistakes.png", "attention.png"}


@pytest.fixture
def finished(run, folder) -> Path:
    run("fit", *TINY, "--experiment", "tiny", "--seed_everything", "3")
    return folder / "runs/tiny/version_0"


def results(run_folder: Path) -> dict:
    return json.loads((run_folder / "results.json").read_text())


def test_a_run_leaves_a_complete_record(finished):
    record = results(finished)
    assert record.keys() >= RESULTS
    assert (record["epochs"], record["steps"], record["seed"], record["data"]) == (1.85, 24, 3, "Digits")
    assert record["command"].startswith("python train.py fit --data Digits ")
    assert 0 <= record["test_accuracy"] <= 1
    assert record["images_per_second"] > 0
    assert record["seconds"] > 0
    names = {path.name for path in finished.iterdir()}
    assert names >= PICTURES | {"config.yaml", "metrics.csv", "checkpoints"}
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert {path.name for path in (finished / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    for name in PICTURES:
        Image.open(finished / name).verify()


def test_metrics_are_logged_with_the_learning_rate(finished):
    rows = list(csv.DictReader((finished / "metrics.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows if row["val_accuracy"]] == ["0", "1"]
    assert all(float(row["lr"]) > 0 for row in rows if row["train_loss"])


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(run, finished, folder):
    run("fit", *TINY, "--experiment", "again", "--seed_everything", "3")
    run("fit", *TINY, "--experiment", "other", "--seed_everything", "4")
    first, again, other = (
        torch.load(folder / f"runs/{name}/version_0/checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for name in ("tiny", "again", "other")
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["vit.head.weight"], other["vit.head.weight"])


def test_a_second_run_gets_its_own_folder(run, finished, folder):
    run("fit", *TINY, "--experiment", "tiny")
    assert sorted(path.name for path in (folder / "runs/tiny").iterdir()) == ["version_0", "version_1"]


def test_the_config_of_a_run_repeats_it(run, finished, folder):
    run("fit", "--config", finished / "config.yaml", "--experiment", "copy")
    assert results(folder / "runs/copy/version_0")["test_accuracy"] == results(finished)["test_accuracy"]


def test_several_configs_are_merged_and_the_last_one_wins(run, folder):
    (folder / "first.yaml").write_text("data: {class_path: Digits}\nmodel: {depth: 3, embed_dim: 8, num_heads: 2}\n")
    (folder / "second.yaml").write_text("model: {depth: 1, patch_size: 8}\n")
    command = ["fit", "--config", "first.yaml", "--config", "second.yaml", "--trainer.fast_dev_run", "true"]
    cli = run(*command, "--trainer.accelerator", "cpu")
    assert (len(cli.model.vit.blocks), cli.model.vit.embed_dim, cli.model.vit.patch_embed.num_patches) == (1, 8, 1)


def test_print_config_prints_what_would_be_run(run, capsys):
    with pytest.raises(SystemExit) as stopped:
        run("fit", *TINY, "--print_config")
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert "class_path: vit.data.Digits" in printed
    assert "embed_dim: 8" in printed


def test_help_describes_every_argument_of_the_model(run, capsys):
    with pytest.raises(SystemExit):
        run("fit", "--help")
    printed = " ".join(capsys.readouterr().out.split())
    for name, words in {
        "depth": "Number of encoder blocks",
        "pool": "What the head reads",
        "ema_decay": "Weight of the past in the moving average",
        "warmup": "Share of the training",
    }.items():
        assert f"--model.{name}" in printed
        assert words in printed


def test_the_data_sizes_the_model(run, folder):
    command = ["fit", *TINY, "--trainer.fast_dev_run", "true"]
    vit_of_run = run(*command).model.vit
    assert (vit_of_run.num_classes, vit_of_run.patch_embed.image_size, vit_of_run.patch_embed.in_channels) == (
        10,
        (8, 8),
        1,
    )


@pytest.mark.parametrize("command", ["test", "validate"])
def test_a_checkpoint_is_evaluated_without_a_config_and_gives_the_same_number(run, finished, command):
    before = results(finished)
    cli = run(command, "--ckpt_path", finished / "checkpoints/last.ckpt", "--trainer.accelerator", "cpu")
    name = {"test": "test_accuracy", "validate": "val_accuracy"}[command]
    assert cli.trainer.callback_metrics[name].item() == pytest.approx(before[name])
    after = results(finished)
    assert after[name] == pytest.approx(before[name])
    assert (after["epochs"], after["steps"], after["command"]) == (before["epochs"], 24, before["command"])


def test_a_test_over_views_of_the_images_tells_the_accuracy_with_and_without_them(run, finished, capsys):
    before = results(finished)
    assert (before["test_accuracy_views"], before["test_views"]) == (None, "none")
    path = finished / "checkpoints/last.ckpt"
    capsys.readouterr()
    cli = run("test", "--ckpt_path", path, *PLAIN, "--model.test_views", "flip")
    after = results(finished)
    assert after["test_accuracy"] == before["test_accuracy"]
    assert after["test_views"] == "flip"

    model, digits = vit.load(path), cli.datamodule.sets["test"]
    images = (digits.images / 255 - model.pretrained_cfg["mean"][0]) / model.pretrained_cfg["std"][0]
    with torch.no_grad():
        logits = (model(images) + model(images.flip(-1))) / 2
    with_views = (logits.argmax(dim=1) == digits.labels).double().mean().item()
    assert with_views != before["test_accuracy"], "else this shows nothing"
    assert after["test_accuracy_views"] == pytest.approx(with_views)
    assert cli.trainer.callback_metrics["test_accuracy_views"].item() == pytest.approx(with_views)
    printed = capsys.readouterr().out
    assert f"test_accuracy: {100 * before['test_accuracy']:.2f} %\n" in printed
    assert f"test_accuracy_views: {100 * with_views:.2f} % (test_views flip)\n" in printed


def test_the_test_at_the_end_of_a_run_takes_views_if_asked_for_and_its_checkpoint_remembers(run, finished, folder):
    run("fit", *TINY, "--experiment", "views", "--seed_everything", "3", "--model.test_views", "six")
    plain, views = results(finished), results(folder / "runs/views/version_0")
    assert (views["test_accuracy"], views["val_accuracy"]) == (plain["test_accuracy"], plain["val_accuracy"])
    assert views["test_views"] == "six"
    assert 0 < views["test_accuracy_views"] <= 1
    test = ["test", "--ckpt_path", "last", "--experiment", "views", *PLAIN]
    assert run(*test).model.hparams.test_views == "six"
    cli = run(*test, "--model.test_views", "none")
    assert "test_accuracy_views" not in cli.trainer.callback_metrics
    again = results(folder / "runs/views/version_0")
    assert again == views | {"test_accuracy_views": None, "test_views": "none"}


def test_a_run_from_before_there_were_views_is_tested_as_it_was(run, finished):
    path = finished / "checkpoints/last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint["hyper_parameters"]["test_views"], checkpoint["data"]["init_args"]["mix_until"]
    torch.save(checkpoint, path)
    before = results(finished)
    old = {name: value for name, value in before.items() if name not in ("test_views", "test_accuracy_views")}
    (finished / "results.json").write_text(json.dumps(old))
    run("test", "--ckpt_path", path, *PLAIN, "--trainer.fast_dev_run", "true")
    assert results(finished) == old
    run("test", "--ckpt_path", path, *PLAIN)
    assert results(finished) == before


@pytest.mark.parametrize(("experiment", "newest"), [("*", "a/version_1"), ("b", "b/version_3")])
def test_last_and_best_name_the_newest_run(monkeypatch, tmp_path, experiment, newest):
    monkeypatch.chdir(tmp_path)
    for age, place in enumerate(["a/version_1", "b/version_3", "a/version_2"]):
        path = Path("runs") / place / "checkpoints/best.ckpt"
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (1e9 - age, 1e9 - age))
    assert newest_checkpoint(experiment, "best") == Path("runs") / newest / "checkpoints/best.ckpt"


def test_a_test_of_the_best_weights_makes_no_new_run(run, finished):
    run("test", "--experiment", "tiny", "--ckpt_path", "best", "--trainer.accelerator", "cpu")
    assert {path.name for path in finished.parent.iterdir()} == {"version_0"}


def test_what_is_typed_overrules_the_checkpoint_and_its_optimizer(run, finished, monkeypatch):
    rates, step = [], torch.optim.AdamW.step

    def noting(optimizer, *args, **kwargs):
        rates.append([group["lr"] for group in optimizer.param_groups])
        return step(optimizer, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", noting)
    typed = ["--model.lr", "0.123", "--model.weight_decay", "0.4", "--model.betas", "[0.5,0.6]"]
    typed += ["--model.decay", "linear", "--model.warmup", "0", "--trainer.max_epochs", "4"]
    cli = run("fit", "--ckpt_path", finished / "checkpoints/last.ckpt", *typed, *PLAIN)
    assert cli.model.vit.embed_dim == 8
    groups = cli.trainer.optimizers[0].param_groups
    assert {group["weight_decay"] for group in groups} == {0.4, 0.0}
    assert {tuple(group["betas"]) for group in groups} == {(0.5, 0.6)}
    # Half of the 48 steps are done, and the rate falls to zero over the other half.
    assert all(len(set(each)) == 1 for each in rates)
    assert [each[0] for each in rates] == pytest.approx([0.123 * (1 - step / 48) for step in range(24, 48)])


def test_fit_goes_on_with_all_that_was_typed_for_the_run(run, finished):
    cli = run("fit", "--ckpt_path", "last", "--trainer.max_epochs", "3")
    record = results(cli.run_folder)
    assert cli.run_folder == Path("runs/tiny/version_1")
    assert (record["seed"], record["epochs"]) == (3, 2.78)
    assert cli.trainer.log_every_n_steps == 5


def test_options_that_this_version_does_not_have_are_left_out(run, finished, capsys):
    path = finished / "checkpoints/last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["hyper_parameters"]["sharpness"] = 0.05
    checkpoint["data"]["init_args"]["scent"] = "lavender"
    torch.save(checkpoint, path)
    before = results(finished)
    run("test", "--ckpt_path", path, *PLAIN)
    assert results(finished) == before
    said = capsys.readouterr().err
    for name in ("sharpness", "scent"):
        assert f"the checkpoint was trained with {name}, which this version does not have: left out\n" in said


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_test_is_in_the_precision_of_the_run(run, folder, precision):
    cli = run("fit", *TINY, "--trainer.precision", precision, "--experiment", "precise")
    before = results(cli.run_folder)
    test = ["test", "--ckpt_path", "last", "--experiment", "precise", "--trainer.accelerator", "cpu"]
    run(*test, "--trainer.precision", "64-true")  # which the record of the run does not take for its own
    cli = run(*test)
    assert cli.trainer.precision == precision
    assert results(cli.run_folder) == before


def test_only_training_compiles(run, finished):
    path = finished / "checkpoints/last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["hyper_parameters"]["compile"] = True
    torch.save(checkpoint, path)
    assert run("test", "--ckpt_path", path, *PLAIN).model.hparams.compile is False


def test_nothing_need_be_logged_between_epochs(run, folder):
    cli = run("fit", *TINY, "--trainer.log_every_n_steps", "0", "--experiment", "quiet")
    assert [point["step"] for point in cli.record.history["train"]] == [12, 24]


def test_a_precision_of_ones_own_takes_the_place_of_ours(run, folder):
    plugin = ["--trainer.plugins+", "lightning.pytorch.plugins.DoublePrecision"]
    cli = run("fit", *TINY[:-6], *plugin, "--trainer.max_epochs", "1", "--trainer.accelerator", "cpu")
    assert cli.trainer.precision == "64-true"


def test_predict_writes_a_row_per_image_and_names_what_is_none(run, finished, folder, capsys):
    photos = folder / "photos/nested"
    photos.mkdir(parents=True)
    for name, size in (("a.png", (8, 8)), ("nested/b.jpg", (31, 17)), ("nested/c.webp", (5, 64))):
        Image.new("RGB", size, (200, 200, 200)).save(folder / "photos" / name)
    (folder / "photos/notes.txt").write_text("no image")
    capsys.readouterr()
    run("predict", "--ckpt_path", finished / "checkpoints/best.ckpt", "--data.root", "photos")
    rows = list(csv.DictReader((finished / "predictions.csv").read_text().splitlines()))
    assert [row["file"] for row in rows] == ["photos/a.png", "photos/nested/b.jpg", "photos/nested/c.webp"]
    for row in rows:
        best = [part.rsplit(" ", 1) for part in row["top5"].split("; ")]
        assert len(best) == 5
        assert [row["class"], row["probability"]] == best[0]
        values = [float(value) for _, value in best]
        assert values == sorted(values, reverse=True)
    assert capsys.readouterr().err == "cannot read image photos/notes.txt: it is no image\n"


def test_predict_takes_images_even_where_a_config_names_another_data_set(run, finished, folder):
    Image.new("L", (8, 8)).save(folder / "one.png")
    command = ["predict", "--config", finished / "config.yaml", "--ckpt_path", finished / "checkpoints/last.ckpt"]
    run(*command, "--data.root", "one.png")
    assert len((finished / "predictions.csv").read_text().splitlines()) == 2


def test_predictions_are_those_of_the_loaded_backbone(run, finished, folder):
    levels = torch.arange(64, dtype=torch.uint8).reshape(8, 8) * 4
    Image.fromarray(levels.numpy()).save(folder / "ramp.png")
    path = finished / "checkpoints/last.ckpt"
    run("predict", "--ckpt_path", path, "--data.root", "ramp.png", "--trainer.precision", "32-true")
    row = next(csv.DictReader((finished / "predictions.csv").read_text().splitlines()))
    model = vit.load(path)
    mean, std = model.pretrained_cfg["mean"][0], model.pretrained_cfg["std"][0]
    with torch.no_grad():
        probabilities = model(((levels / 255 - mean) / std)[None, None]).softmax(1)[0]
    assert row["class"] == model.pretrained_cfg["class_names"][probabilities.argmax()]
    assert float(row["probability"]) == pytest.approx(probabilities.max().item(), abs=1e-4)


def test_a_time_limit_drives_the_learning_rate_to_zero_and_ends_with_a_validation(run, folder):
    command = ["fit", *TINY[:-2], "--trainer.max_time", "00:00:00:03", "--experiment", "clock"]
    cli = run(*command, "--model.decay", "linear", "--trainer.log_every_n_steps", "1")
    seconds = results(folder / "runs/clock/version_0")["seconds"]
    assert 3 <= seconds < 10
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] < 0.05 * cli.model.hparams.lr
    checkpoint = torch.load(folder / "runs/clock/version_0/checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == cli.trainer.global_step
    validated = checkpoint["callbacks"]["RunRecord"]["history"]["val"][-1]["step"]
    assert validated == cli.trainer.global_step


def test_a_run_of_steps_that_ends_in_mid_epoch_is_validated_at_its_end(run, folder):
    run("fit", *TINY, "--trainer.max_steps", "5", "--experiment", "steps")
    record = results(folder / "runs/steps/version_0")
    assert record["steps"] == 5
    assert record["val_accuracy"] is not None


def test_the_test_images_are_left_alone_where_the_user_says_so(run, folder):
    run("fit", *TINY, "--experiment", "tune", "--trainer.limit_test_batches", "0")
    assert results(folder / "runs/tune/version_0")["test_accuracy"] is None


def test_training_without_validation_images_keeps_the_last_checkpoint(run, folder):
    run("fit", *TINY, "--experiment", "all", "--data.val_fraction", "0")
    assert [path.name for path in (folder / "runs/all/version_0/checkpoints").iterdir()] == ["last.ckpt"]
    assert results(folder / "runs/all/version_0")["val_accuracy"] is None


def test_fast_dev_run_leaves_nothing(run, folder):
    run("fit", *TINY, "--trainer.fast_dev_run", "true")
    assert not (folder / "runs").exists()


def test_gradients_of_several_batches_are_one_step_which_is_noted_once(run, folder):
    accumulating = ["--trainer.accumulate_grad_batches", "2", "--trainer.log_every_n_steps", "1"]
    cli = run("fit", *TINY, "--data.batch_size", "300", *accumulating, "--trainer.limit_test_batches", "0")
    # Four batches of an epoch are two steps.
    assert [point["step"] for point in cli.record.history["train"]] == [1, 2, 3, 4]
