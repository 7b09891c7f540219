"""The script of docs/ for Ray Train trains in two workers."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import vit

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(find_spec("ray") is None, reason='ray is not installed: pip install "ray[train]"')
def test_two_workers_of_ray_train_a_classifier_whose_checkpoint_is_loaded(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "docs/ray_train.py")]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    accuracy, place = re.search(r"val_accuracy ([\d.]+) in (\S+)", ended.stdout).groups()
    assert float(accuracy) > 0.5  # of ten classes
    (path,) = Path(place).rglob("checkpoint.ckpt")
    assert vit.load(path).config["embed_dim"] == 32
