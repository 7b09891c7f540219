"""Puts the benchmarks on the path, as scripts of one folder import each other; and what their tests share."""

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(scope="session")
def unpadded():
    """Take the padding out of tables."""
    return lambda text: re.sub(r" +", " ", text)


@pytest.fixture(scope="session")
def results_of():
    """The results.json of a run, by its seed and accuracy."""

    def results_of(seed, test_accuracy):
        return {
            "test_accuracy": test_accuracy,
            "test_accuracy_views": None,
            "test_views": "none",
            "val_accuracy": 0.7,
            "val_loss": 1.0,
            "epochs": 9.7,
            "steps": 3663,
            "seconds": 601.0,
            "petaflop": 0.0951,
            "images_per_second": 786.0,
            "parameters": 461866,
            "device": "cpu, 2 threads",
            "precision": "bf16-mixed",
            "seed": seed,
            "data": "ImageFolder data/cifar10-jpeg",
            "command": f"python train.py fit --config configs/quick.yaml --seed_everything {seed}",
        }

    return results_of
