"""The masked autoencoder, trained and asked from the command line."""

import csv
import json
from pathlib import Path

import pytest
import torch

import vit
from tests.tiny import CPU, MODEL
from vit.model.masked_autoencoder import hidden_patches, reconstruction_losses
from vit.objectives import MaskedAutoencoder

MAE = [
    *("--data", "Digits", "--data.batch_size", "400", "--model", "MaskedAutoencoder", *MODEL, *CPU),
    *(
        "--model.patch_size",
        "2",
        "--model.decoder_dim",
        "8",
        "--model.decoder_depth",
        "1",
        "--model.decoder_heads",
        "2",
    ),
    *("--trainer.max_epochs", "2", "--experiment", "mae"),
]


def autoencoder(**changes):
    torch.manual_seed(0)
    decoder = {"decoder_dim": 8, "decoder_depth": 1, "decoder_heads": 2}
    sizes = {"image_size": (6, 8), "patch_size": 2, "in_channels": 1, "embed_dim": 12, "depth": 1, "num_heads": 3}
    return MaskedAutoencoder(**decoder | sizes | changes)


@pytest.fixture
def images():
    return torch.randint(0, 256, (5, 1, 6, 8), dtype=torch.uint8, generator=torch.manual_seed(1))


@pytest.mark.parametrize("option", ["mask_ratio=0.0", "mask_ratio=1.0", "mask_ratio=-0.5", "mask_ratio=0.01"])
def test_a_share_that_hides_none_or_all_patches_is_refused_in_one_line(error_of, option):
    message = error_of("fit", *MAE, f"--model.{option}")
    assert message.startswith(f"error: mask_ratio ({option.split('=')[1]}) ")
    assert "0.75 is usual" in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool": "map"}, r"pool \('map'\) has weights that a masked autoencoder does not train"),
        ({"patch_drop": 0.5}, r"patch_drop \(0.5\) does nothing in a masked autoencoder"),
        ({"attention": "window", "attention_kwargs": {"window": 2}}, "attention of block 0 needs the whole grid"),
        ({"patch_size": (6, 8)}, r"mask_ratio \(0.75\) hides none of the 1 patches"),
    ],
)
def test_what_does_not_work_with_hidden_patches_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        autoencoder(**changes)


def test_three_quarters_of_the_patches_are_hidden_other_ones_in_each_image():
    hidden = hidden_patches(autoencoder().sample_visible(50), 12)
    assert hidden.sum(dim=1).tolist() == [9] * 50
    assert len(hidden.unique(dim=0)) > 40


def test_the_loss_of_a_training_is_that_of_the_network_on_drawn_patches(images, monkeypatch):
    module = autoencoder()
    keep = module.sample_visible(5)
    monkeypatch.setattr(module, "sample_visible", lambda count: keep)
    normalised = (images / 255 - 0.5) / 0.5
    expected = reconstruction_losses(module.network(normalised, keep), normalised, keep, (2, 2)).mean()
    torch.testing.assert_close(module.training_loss((images, torch.zeros(5))), expected)


def test_an_evaluation_hides_the_same_patches_in_each_image_and_each_time(images):
    module = autoencoder().eval()
    real = torch.ones(5, dtype=torch.bool)
    parts = [module.losses(images[:2], real[:2], 3), module.losses(images[2:], real[2:], 1)]
    torch.testing.assert_close(torch.cat(parts), module.losses(images, real, 0))


def test_the_operations_are_those_of_the_visible_patches_in_the_encoder_and_all_in_the_decoder():
    module = autoencoder(mlp_ratio=2.0)
    tokens, all_tokens = 1 + 3, 1 + 12
    encoder = 12 * 4 * 12 + tokens * 8 * 12**2 + 2 * tokens**2 * 12
    decoder = tokens * 12 * 8 + all_tokens * 8 * 8**2 + 2 * all_tokens**2 * 8 + 12 * 8 * 4
    assert module.training_flop() == 3 * 2 * (encoder + decoder)


@pytest.fixture(scope="module")
def trained(module_folder):
    """The folder of a run with its pictures, and what it printed."""
    from contextlib import redirect_stdout
    from io import StringIO

    from tests.digit_runs import drawing, run_command

    with drawing(), redirect_stdout(StringIO()) as printed:
        run_command("fit", *MAE)
    return module_folder / "runs/mae/version_0", printed.getvalue()


def test_a_run_has_its_scores_in_results_console_metrics_and_report(trained):
    run, printed = trained
    results = json.loads((run / "results.json").read_text())
    scores = results["scores"]
    assert scores["reconstruction_error"] == pytest.approx(results["test_reconstruction_error"])
    assert 0 < scores["knn_accuracy"] < 1
    assert 1 < scores["effective_rank"] <= 8
    assert printed.count("  features: accuracy of neighbours ") == 2
    assert f"test_reconstruction_error: {scores['reconstruction_error']:.3f}\nfeatures: accuracy of neig" in printed
    with (run / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("val_effective_rank")]
    assert len(rows) == 2
    assert all(float(row["val_knn_accuracy"]) > 0 and float(row["val_feature_std"]) > 0 for row in rows)
    page = (run / "report.html").read_text()
    for heading in ("Reconstructions", "Neighbours", "Effective rank", "Test error of reconstruction"):
        assert heading in page
    assert {path.name for path in run.glob("*.png")} == {"curves.png", "neighbours.png", "reconstructions.png"}


def test_each_validation_of_a_training_draws_its_reconstructions(run, folder, monkeypatch, pictures):
    epochs, logged = [], []

    def draw(module, folder, split, _):
        epochs.append((split, module.trainer.current_epoch))
        return folder / "reconstructions.png"

    monkeypatch.setattr("vit.objectives.mae.objective.draw_reconstructions", draw)
    monkeypatch.setattr("vit.runs.run_pictures.log_pictures", lambda loggers, paths, step: logged.append([*paths]))
    run("fit", *MAE, "--trainer.num_sanity_val_steps", "2", "--trainer.limit_test_batches", "0")
    assert epochs == [("validation", 0), ("validation", 1), ("validation", 2)]  # the last one is that of the end
    assert logged[:2] == [[Path("runs/mae/version_0/reconstructions.png")]] * 2


def test_its_checkpoint_is_a_backbone_that_loads_and_starts_a_classifier(trained, module_folder, run, monkeypatch):
    checkpoint = trained[0] / "checkpoints/last.ckpt"
    model = vit.load(checkpoint)
    state = torch.load(checkpoint, weights_only=True)["state_dict"]
    assert (model.num_classes, model.embed_dim) == (0, 8)
    assert torch.equal(model.blocks[1].mlp.fc2.weight, state["network.encoder.blocks.1.mlp.fc2.weight"])
    module = MaskedAutoencoder.load_from_checkpoint(checkpoint, weights_only=True).eval()
    images = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(model(module.normalise(images)), module.features(images))

    start = ["--model.init_from", checkpoint, *CPU, "--trainer.max_steps", "1", "--trainer.limit_test_batches", "0"]
    cli = run("fit", "--data", "Digits", *start, "--model.lr", "0")
    assert cli.model.network.num_classes == 10
    assert torch.equal(cli.model.network.blocks[0].attn.qkv.weight, model.blocks[0].attn.qkv.weight)


def test_a_test_repeats_the_scores_and_a_prediction_is_refused_with_what_writes_features(trained, run, error_of):
    checkpoint = trained[0] / "checkpoints/last.ckpt"
    cli = run("test", "--ckpt_path", checkpoint)
    again = json.loads((cli.run_folder / "results.json").read_text())["scores"]
    assert again == pytest.approx(json.loads((trained[0] / "results.json").read_text())["scores"])
    message = error_of("predict", "--ckpt_path", checkpoint, "--data.root", trained[0])
    assert (
        message == "error: MaskedAutoencoder predicts no labels: vit-attention features writes the features of images"
    )
    assert [*trained[0].glob("predictions*")] == []


def test_a_resumed_run_ends_with_the_same_bits(whole_and_resumed):
    random = ["--model.dropout", "0.1", "--model.ema_decay", "0.9", "--trainer.max_epochs", "3"]
    whole, resumed = whole_and_resumed(MaskedAutoencoder, *MAE, *random)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("balance=loss", "balance 'loss' weights classes, and MaskedAutoencoder has none: take 'sampling' or 'none'"),
        ("mixup=0.8", "mixup (0.8) blends images for a classifier, and MaskedAutoencoder is none: set it to 0"),
        ("cutmix=1", "cutmix (1.0) blends images for a classifier, and MaskedAutoencoder is none: set it to 0"),
    ],
)
def test_what_only_a_classifier_needs_is_refused(error_of, option, message):
    assert error_of("fit", *MAE, f"--data.{option}") == f"error: {message}"


def test_texts_do_not_matter_and_a_batch_of_one_trains(run, folder):
    few = ["--data.count", "40", "--data.batch_size", "1", "--trainer.max_steps", "2", "--model.patch_size", "8"]
    few += ["--trainer.limit_val_batches", "2", "--trainer.limit_test_batches", "2"]
    run("fit", *MAE, "--data", "DigitStrings", *few)
    scores = json.loads((folder / "runs/mae/version_0/results.json").read_text())["scores"]
    assert scores["knn_accuracy"] is None
