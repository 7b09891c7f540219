"""Runs of the real command line, on the digits and small enough for a test."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import train

TINY = [
    *("--data", "Digits", "--data.batch_size", "100", "--data.crop_padding", "1"),
    *("--model.patch_size", "4", "--model.embed_dim", "8", "--model.depth", "2", "--model.num_heads", "2"),
    *("--trainer.accelerator", "cpu", "--trainer.precision", "32-true", "--trainer.max_epochs", "2"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Callable[..., train.ViTCLI]:
    """Run a command of train.py in this process: ``run("fit", *TINY)``."""

    def run_command(*arguments: object) -> train.ViTCLI:
        return train.main([str(argument) for argument in arguments])

    return run_command


@pytest.fixture
def mistake(run: Callable[..., train.ViTCLI], capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail in one line on standard error, and return that line."""

    def run_mistake(*arguments: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            run(*arguments)
        assert stopped.value.code == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1, lines
        return lines[0]

    return run_mistake


def weights(path: Path) -> dict[str, torch.Tensor]:
    """All tensors that a resumed run continues from."""
    checkpoint = torch.load(path, weights_only=True)
    training = {f"training.{name}": tensor for name, tensor in checkpoint.get("training_weights", {}).items()}
    return {**checkpoint["state_dict"], **training}
