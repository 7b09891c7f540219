"""Puts the benchmarks on the path, as scripts of one folder import each other; and what their tests share."""

import re
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import train

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Build what a command line of train.py would run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    on_cpu = ["--trainer.accelerator", "cpu", "--trainer.precision", "32-true"]
    return lambda typed: train.main([*typed, *on_cpu], run=False)


@pytest.fixture(scope="session")
def save_noise():
    """Save random images of 32 x 32 pixels."""

    def save_noise(folder, count):
        folder.mkdir(parents=True)
        for index in range(count):
            noise = torch.randint(256, (32, 32, 3), dtype=torch.uint8)
            Image.fromarray(noise.numpy()).save(folder / f"{index}.png")

    return save_noise


@pytest.fixture(scope="session")
def unpadded():
    """Take the padding out of tables."""
    return lambda text: re.sub(r" +", " ", text)


@pytest.fixture(scope="session")
def results_of():
    """The results.json of a run, by its seed and accuracy."""
    facts = {"test_accuracy_views": None, "test_views": "none", "val_accuracy": 0.7, "val_loss": 1.0}
    facts |= {"epochs": 9.7, "steps": 3663, "seconds": 601.0, "petaflop": 0.0951, "images_per_second": 786.0}
    facts |= {"parameters": 461866, "device": "cpu, 2 threads", "precision": "bf16-mixed"}
    facts["data"] = "ImageFolder data/cifar10-jpeg"
    command = "python train.py fit --config configs/quick.yaml --seed_everything"
    return lambda seed, value: facts | {"test_accuracy": value, "seed": seed, "command": f"{command} {seed}"}
