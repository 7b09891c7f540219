"""Options and callbacks of Lightning on the command line that its users bring along."""

import importlib.util
import json
from types import SimpleNamespace

import pytest
import torch
from lightning import Trainer, seed_everything
from lightning.pytorch.callbacks import BackboneFinetuning, LambdaCallback
from lightning.pytorch.loggers import csv_logs
from lightning.pytorch.plugins import AsyncCheckpointIO

from tests.tiny import MODEL, TINY
from vit.data import Digits
from vit.objectives import ViTClassifier
from vit.weights import read_checkpoint

ONE = [*TINY, "--trainer.max_epochs", "1", "--trainer.limit_test_batches", "0", "--experiment", "one"]


@pytest.fixture(autouse=True)
def without_report(monkeypatch):
    monkeypatch.setattr("vit.commands.training_cli.write_report", lambda folder: None)


@pytest.mark.parametrize(
    "words",
    [
        ["--trainer.num_sanity_val_steps", "2"],
        ["--trainer.callbacks+", "GradientAccumulationScheduler", "--trainer.callbacks.scheduling", "{0: 2}"],
        ["--trainer.callbacks+", "TQDMProgressBar"],
    ],
    ids=lambda words: words[1],
)
def test_an_option_of_lightning_trains_and_is_noted_whole(run, folder, words):
    run("fit", *ONE, *words)
    record = json.loads((folder / "runs/one/version_0/results.json").read_text(encoding="utf-8"))
    assert record["finished"]
    assert record["epochs"] == pytest.approx(0.93, abs=0.01)
    run("fit", "--config", "runs/one/version_0/config.yaml", "--trainer.fast_dev_run", "true")


def test_an_accumulation_that_is_typed_halves_the_steps(run):
    scheduling = ["--trainer.callbacks+", "GradientAccumulationScheduler", "--trainer.callbacks.scheduling", "{0: 2}"]
    steps = [run("fit", *ONE, *words).trainer.global_step for words in ([], scheduling)]
    assert steps == [12, 6]


def test_the_arguments_of_the_data_reach_a_logger_and_come_back_from_a_checkpoint(run, folder):
    run(
        "fit",
        *ONE,
        "--data.batch_size",
        "64",
        "--trainer.logger",
        "TensorBoardLogger",
        "--trainer.logger.save_dir",
        "b",
    )
    (noted,) = (folder / "b").rglob("hparams.yaml")
    assert "batch_size: 64" in noted.read_text()
    assert Digits.load_from_checkpoint(folder / "runs/one/version_0/checkpoints/last.ckpt").batch_size == 64


def test_checkpoints_can_be_written_while_the_training_goes_on(run, folder):
    run("fit", *ONE)
    cli = run("fit", *ONE, "--trainer.plugins+", "lightning.pytorch.plugins.AsyncCheckpointIO")
    assert isinstance(cli.trainer.strategy.checkpoint_io, AsyncCheckpointIO)
    paths = [folder / f"runs/one/version_{version}/checkpoints" for version in (0, 1)]
    for name in ("last", "best"):
        one, other = (read_checkpoint(path / f"{name}.ckpt")["state_dict"] for path in paths)
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_backbone_finetuning_in_python_names_what_is_there_instead(folder):
    model = ViTClassifier(image_size=8, patch_size=4, in_channels=1, embed_dim=8, depth=1, num_heads=2)
    options = {"max_steps": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    trainer = Trainer(**options, callbacks=[BackboneFinetuning()], enable_progress_bar=False)
    with pytest.raises(ValueError, match="here both are one network: freeze=N of ViTClassifier keeps"):
        trainer.fit(model, Digits())

    class WithBackbone(ViTClassifier):
        @property
        def backbone(self):
            return self.network.blocks

    trainer = Trainer(**options, callbacks=[BackboneFinetuning()], enable_progress_bar=False)
    model = WithBackbone(image_size=8, patch_size=4, in_channels=1, embed_dim=8, depth=1, num_heads=2)
    with pytest.raises(ValueError, match="return an optimiser of your own from configure_optimizers"):
        trainer.fit(model, Digits())


def test_backbone_finetuning_unfreezes_the_backbone_of_an_own_class_with_an_own_optimiser(folder):
    class Own(ViTClassifier):
        @property
        def backbone(self):
            return self.network.blocks

        def configure_optimizers(self):
            return torch.optim.SGD([each for each in self.parameters() if each.requires_grad], 0.1)

    model = Own(image_size=8, patch_size=4, in_channels=1, embed_dim=8, depth=1, num_heads=2)
    qkv = model.network.blocks[0].attn.qkv.weight
    weights = [qkv.detach().clone()]
    callbacks = [BackboneFinetuning(unfreeze_backbone_at_epoch=1)]
    callbacks.append(LambdaCallback(on_train_epoch_end=lambda *_: weights.append(qkv.detach().clone())))
    options = {"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    Trainer(**options, callbacks=callbacks, enable_progress_bar=False).fit(model, Digits(batch_size=400))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])


def test_overfit_batches_of_one_is_one_batch_and_a_note_of_lightning_that_is_none_is_hidden(run, folder, capsys):
    cli = run("fit", *ONE, "--trainer.overfit_batches", "1")
    assert cli.trainer.global_step == 1
    assert "overfit" not in capsys.readouterr().err


def test_early_stopping_that_looks_too_early_is_told_when_values_are_there(error_of):
    stop = ["--trainer.callbacks+", "EarlyStopping", "--trainer.callbacks.monitor", "train_loss"]
    line = error_of("fit", *ONE, *stop, "--trainer.val_check_interval", "2", "--trainer.log_every_n_steps", "9")
    assert "EarlyStopping looks for train_loss before it is logged: train_loss and lr are there after log_every" in line
    assert "so set --trainer.log_every_n_steps 1;" in line


def test_a_logger_that_refuses_is_one_line(error_of, monkeypatch):
    class RefusedError(Exception):
        """An exception of the package of a logger."""

    def refuse(*_, **__):
        raise RefusedError("The file store is in maintenance mode.\n\nDetails:\n  - one\n  - two")

    monkeypatch.setattr(csv_logs, "ExperimentWriter", refuse)
    assert error_of("fit", *ONE) == "error: the logger refuses: The file store is in maintenance mode"


def test_a_logger_that_refuses_when_it_is_built_is_one_line(error_of, monkeypatch):
    def refuse(_):
        raise RuntimeError("The file store is in maintenance mode.\n\nDetails:\n  - one\n  - two")

    monkeypatch.setattr(csv_logs, "os", SimpleNamespace(fspath=refuse))
    logger = ["--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "rows"]
    assert error_of("fit", *ONE, *logger) == "error: the logger refuses: The file store is in maintenance mode"


def test_a_logger_without_its_package_names_it_whole(error_of):
    if importlib.util.find_spec("comet_ml") is not None:
        pytest.skip("comet_ml is installed")
    line = error_of("fit", *ONE, "--trainer.logger", "CometLogger")
    assert line == "error: comet-ml is not installed: pip install comet-ml"


def test_tensorboard_is_an_extra_of_its_own(error_of, monkeypatch):
    for name in ("_TENSORBOARD_AVAILABLE", "_TENSORBOARDX_AVAILABLE"):
        monkeypatch.setattr(f"lightning.fabric.loggers.tensorboard.{name}", False)
    line = error_of("fit", *ONE, "--trainer.logger", "TensorBoardLogger", "--trainer.logger.save_dir", "board")
    needed = "TensorBoardLogger needs tensorboard, which is not installed: pip install 'vit-attention[tensorboard]'"
    assert line == f"error: {needed}"


def test_what_a_trainer_in_python_computes_otherwise_is_said(run, monkeypatch, capsys):
    monkeypatch.setattr("vit.commands.training_cli.fastest_precision", lambda accelerator: "bf16-mixed")
    fast = ["--trainer.accelerator", "cpu", "--trainer.fast_dev_run", "true"]
    run("fit", "--data", "Digits", *MODEL, *fast)
    assert (
        "Trainer() in Python has --trainer.precision 32-true (here bf16-mixed, the fastest) and "
        "--trainer.gradient_clip_val null (here 1.0)\n"
    ) in capsys.readouterr().out
    run("fit", "--data", "Digits", *MODEL, *fast, "--trainer.precision", "32-true")
    assert "in Python has --trainer.gradient_clip_val null (here 1.0)\n" in capsys.readouterr().out
    run("fit", "--data", "Digits", *MODEL, *fast, "--trainer.precision", "32-true", "--trainer.gradient_clip_val", "0")
    assert "in Python" not in capsys.readouterr().out


def test_the_same_settings_give_the_same_weights_from_the_command_line_and_from_python(run):
    typed = run("fit", *TINY, "--trainer.max_epochs", "1").model.network.state_dict()
    seed_everything(0)
    data = Digits(batch_size=100)
    sizes = {"image_size": 8, "in_channels": 1, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2}
    model = ViTClassifier(**sizes, num_classes=10, mean=data.mean, std=data.std)
    Trainer(max_epochs=1, accelerator="cpu", gradient_clip_val=1.0, logger=False, enable_checkpointing=False).fit(
        model, data
    )
    in_python = model.network.state_dict()
    assert all(torch.equal(typed[name], in_python[name]) for name in typed)
