"""Runs of the real command line, on the digits and small enough for a test."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from lightning import LightningModule
from torch import Tensor

from tests.tiny import TINY, run_command
from vit.commands.training_cli import ViTCLI
from vit.runs.run_pictures import RunPictures

__all__ = [
    *("error_of", "finished", "folder", "module_folder", "no_pictures", "pictures", "run", "trained"),
    "whole_and_resumed",
]
State = dict[str, Tensor]


@contextmanager
def working_in(folder: Path) -> Iterator[Path]:
    """Run in a folder, with a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr(sys, "argv", ["train.py"])
        yield folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with working_in(tmp_path):
        yield tmp_path


@pytest.fixture(scope="module")
def module_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to run in that the tests of a file share."""
    with working_in(tmp_path_factory.mktemp("module")) as folder:
        yield folder


DRAW = {name: getattr(RunPictures, name) for name in ("_draw_curves", "_draw_images")}


@pytest.fixture(scope="module", autouse=True)
def no_pictures() -> Iterator[None]:
    """Draw nothing unless a test asks for ``pictures``: they take longer than the training of a model so small."""
    with pytest.MonkeyPatch.context() as patch:
        for name in DRAW:
            patch.setattr(RunPictures, name, lambda *_: None)
        yield


@contextmanager
def drawing() -> Iterator[None]:
    """Draw the pictures of runs."""
    with pytest.MonkeyPatch.context() as patch:
        for name, draw in DRAW.items():
            patch.setattr(RunPictures, name, draw)
        yield


@pytest.fixture
def pictures() -> Iterator[None]:
    with drawing():
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder ``runs`` of a finished training, which all tests share."""
    return train_once(tmp_path_factory.getbasetemp())


@cache  # the fixture is another one in each folder whose conftest imports it
def train_once(base: Path) -> Path:
    """Train in a folder of the session, which the workers of pytest-xdist share."""
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "trained"
    with FileLock(f"{place}.lock"):
        if not place.exists():
            place.mkdir()
            with drawing(), working_in(place):
                run_command("fit", *TINY, "--experiment", "tiny", "--seed_everything", "3", "--model.test_views", "six")
    return place / "runs"


@pytest.fixture
def finished(trained: Path, folder: Path) -> Path:
    """A copy of the finished training, ``runs/tiny/version_0`` in the folder of the test."""
    shutil.copytree(trained, folder / "runs")
    return folder / "runs/tiny/version_0"


@pytest.fixture
def run(folder: Path) -> Callable[..., ViTCLI]:
    return run_command


@pytest.fixture
def whole_and_resumed(run: Callable[..., ViTCLI], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[State]]:
    """Train, then train again from the checkpoint of step 5; return the weights at both ends."""

    def save_step_5(module: LightningModule, *_: object) -> None:
        if module.trainer.global_step == 5:
            module.trainer.save_checkpoint("middle.ckpt")

    def whole_and_resumed(module: type[LightningModule], *arguments: str) -> list[State]:
        command = ["fit", *arguments, "--experiment", "resumed"]
        with monkeypatch.context() as patch:
            patch.setattr(module, "on_train_batch_end", save_step_5, raising=False)
            run(*command)
        run(*command, "--ckpt_path", "middle.ckpt")
        ends = [f"runs/resumed/version_{version}/checkpoints/last.ckpt" for version in (0, 1)]
        return [torch.load(path, weights_only=True)["state_dict"] for path in ends]

    return whole_and_resumed


@pytest.fixture
def error_of(run: Callable[..., ViTCLI], capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail with one line on standard error, and return that line."""

    def error_of_command(*arguments: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            run(*arguments)
        assert stopped.value.code == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1, lines
        return lines[0]

    return error_of_command
