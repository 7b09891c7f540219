"""The callback AttentionMaps, and attention.png of every run."""

import csv
from types import SimpleNamespace

import pytest
import torch
from lightning import Trainer
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from tests.digit_runs import drawing
from tests.tiny import CPU, MODEL, run_command
from vit.objectives import MultilabelClassifier, ViTClassifier
from vit.runs import attention_over_time
from vit.runs.attention_over_time import AttentionMaps

TINY = [
    *("--data", "Digits", "--data.batch_size", "200", *MODEL, *CPU, "--model.ema_decay", "0.9"),
    *("--trainer.max_epochs", "2", "--trainer.limit_test_batches", "0", "--seed_everything", "3"),
]
CALLBACK = "--trainer.callbacks+=AttentionMaps"

pytestmark = pytest.mark.usefixtures("pictures")


def weights(folder):
    return torch.load(folder / "checkpoints/last.ckpt", weights_only=True)


@pytest.fixture(scope="module")
def untested(module_folder):
    """A run without a test, resumed after its end: the titles and the head weights of its attention.png, each time."""
    drawn = []
    with drawing(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "vit.objectives.classify.pictures.draw_map",
            lambda classifier, images, names, title, path: drawn.append(
                (title, classifier.network.head.weight.clone())
            ),
        )
        run_command("fit", *TINY, "--experiment", "untested")
        (module_folder / "runs/untested/version_0/results.json").unlink()  # as if it had been killed before its end
        run_command("fit", "--ckpt_path", "last", "--experiment", "untested")
    return SimpleNamespace(drawn=drawn, folder=module_folder / "runs/untested/version_0")


def test_without_a_test_attention_is_shown_on_validation_images_with_the_averaged_weights(untested):
    saved = weights(untested.folder)
    assert not torch.equal(saved["training_weights"]["network.head.weight"], saved["state_dict"]["network.head.weight"])
    assert len(untested.drawn) == 2
    for title, head in untested.drawn:
        assert title == "What speaks for the most probable class, validation images"
        assert torch.equal(saved["state_dict"]["network.head.weight"], head)


def test_the_callback_draws_and_logs_and_the_weights_stay_the_same(untested, run, folder, capsys, monkeypatch):
    to_loggers = []
    monkeypatch.setattr(attention_over_time, "log_pictures", lambda *given, name: to_loggers.append((*given[1], name)))
    run("fit", *TINY, "--experiment", "shown", CALLBACK, "--trainer.callbacks.every_n_epochs=2")
    shown = folder / "runs/shown/version_0"
    assert {path.name for path in (shown / "attention").iterdir()} == {"epoch_0002.png"}
    for name in ("attention/epoch_0002.png", "attention_over_time.png", "attention.png"):
        with Image.open(shown / name) as picture:
            assert min(picture.size) > 200
    rows = list(csv.DictReader((shown / "metrics.csv").read_text().splitlines()))
    logged = [row for row in rows if row["attention_distance/layer_1"]]
    assert [row["epoch"] for row in logged] == ["1"]
    assert 0 < float(logged[0]["attention_distance/layer_0"]) < 4 * 2**0.5
    assert 0 < float(logged[0]["attention_entropy/layer_1"]) <= 1
    without, with_it = weights(untested.folder), weights(shown)
    for part in ("state_dict", "training_weights"):
        assert all(torch.equal(without[part][name], tensor) for name, tensor in with_it[part].items())
    ((path, name),) = to_loggers
    assert (path.name, name) == ("epoch_0002.png", "attention_of_epoch")
    assert "switched off" not in capsys.readouterr().out
    again = run("fit", "--config", shown / "config.yaml", "--trainer.fast_dev_run", "true", "--experiment", "again")
    (callback,) = [callback for callback in again.trainer.callbacks if isinstance(callback, AttentionMaps)]
    assert callback.every_n_epochs == 2
    assert not (folder / "runs/again").exists()


def test_a_mechanism_without_weights_is_trained_and_the_reason_for_no_picture_is_printed(run, folder, capsys):
    run("fit", *TINY, "--experiment", "linear", "--model.attention", "linear", CALLBACK, "--trainer.max_epochs", "1")
    lines = capsys.readouterr().out.splitlines()
    for start in ("AttentionMaps is switched off: ", "no attention.png: "):
        (line,) = [line for line in lines if line.startswith(start)]
        assert "never forms the matrix of attention weights" in line
    assert not (folder / "runs/linear/version_0/attention.png").exists()
    assert (folder / "runs/linear/version_0/mistakes.png").exists()


def test_without_validation_images_the_callback_prints_so(capsys):
    facts = {"callbacks": [], "log_dir": "runs", "is_global_zero": True, "fast_dev_run": False}
    module = ViTClassifier(image_size=8, patch_size=4, embed_dim=8, depth=1, num_heads=2)
    AttentionMaps().on_fit_start(SimpleNamespace(**facts, datamodule=SimpleNamespace(sets={})), module)
    assert capsys.readouterr().out == "AttentionMaps is switched off: there are no validation images\n"


@pytest.mark.parametrize("name", ["num_images", "every_n_epochs"])
def test_arguments_below_one_are_refused(name):
    with pytest.raises(ValueError, match=rf"{name} \(0\) must be a positive whole number"):
        AttentionMaps(**{name: 0})


def test_a_picture_that_fails_does_not_end_the_run(run, folder, monkeypatch, capsys):
    def fail(*args, **kwargs):
        raise RuntimeError("the disk\nis full")

    monkeypatch.setattr("vit.objectives.classify.pictures.draw_map", fail)
    monkeypatch.setattr("vit.runs.attention_over_time.signed_map", fail)
    run("fit", *TINY, CALLBACK)
    printed = capsys.readouterr().out
    assert printed.count("AttentionMaps is switched off: the disk is full") == 1
    assert printed.count("no attention.png: the disk is full") == 1
    assert "val_accuracy: " in printed


def test_bfloat16_and_negative_weights_are_shown_by_fit_and_test(run, folder, capsys):
    precise = ("--trainer.precision", "bf16-true", "--model.attention", "talking", "--trainer.max_epochs", "1")
    run("fit", *TINY, *precise, "--experiment", "half", CALLBACK)
    run_folder = folder / "runs/half/version_0"
    assert (run_folder / "attention/epoch_0001.png").exists()
    assert (run_folder / "attention.png").exists()
    run("test", "--ckpt_path", run_folder / "checkpoints/last.ckpt")
    assert (run_folder / "evaluations/test_last_0/attention.png").exists()
    assert "no attention.png" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", [ViTClassifier, MultilabelClassifier])
def test_attention_is_shown_on_images_of_own_loaders(tmp_path, capsys, kind):
    torch.manual_seed(0)
    labels = torch.arange(12) % 3
    labels = labels if kind is ViTClassifier else torch.nn.functional.one_hot(labels).float()
    loader = DataLoader(TensorDataset(torch.rand(12, 1, 8, 8), labels), 4)
    sizes = {"image_size": 8, "patch_size": 4, "in_channels": 1, "embed_dim": 8, "depth": 1, "num_heads": 2}
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=[AttentionMaps()],
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(kind(num_classes=3, **sizes), loader, loader)
    assert "switched off" not in capsys.readouterr().out
    assert {path.name for path in tmp_path.rglob("*.png")} == {"epoch_0001.png", "attention_over_time.png"}
