"""The benchmark of the weight of SIGReg, with trainings that take no time."""

import json

import pytest
import sigreg_weight

import train
from tests.tiny import CPU
from vit.commands.training_cli import ViTCLI


@pytest.fixture
def images(save_noise, tmp_path):
    for split in ("train", "test"):
        save_noise(tmp_path / "images" / split / "cat", 4)
    return tmp_path / "images"


def test_each_weight_is_a_training_of_the_command_line_and_only_missing_ones_are_run_again(
    images, tmp_path, monkeypatch, unpadded
):
    given = []

    def trained(name, typed):
        given.append(typed)
        scores = {"knn_accuracy": 0.1 * len(given), "effective_rank": 3.0}
        facts = {"epochs": 2.0, "steps": 9, "seconds": 1.0, "images_per_second": 5.0, "parameters": 99, "seed": 0}
        return facts | {"precision": "32-true", "command": "python train.py fit --config a.yaml", "scores": scores}

    monkeypatch.setattr(sigreg_weight, "train", trained)
    typed = ["--data", str(images), "--output", str(tmp_path), "--minutes", "0.1"]
    sigreg_weight.main(typed)
    assert len(given) == len(sigreg_weight.WEIGHTS)
    page = unpadded((tmp_path / "sigreg_weight.md").read_text())
    assert "| 0.01 | 10.0 % | 3.0 | 2.0 |" in page
    assert "| 0.1 | 40.0 % | 3.0 | 2.0 |" in page

    cells = json.loads((tmp_path / "sigreg_weight.json").read_text())
    del cells["sigreg_weight 0.05"]
    (tmp_path / "sigreg_weight.json").write_text(json.dumps(cells))
    given.clear()
    sigreg_weight.main(typed)
    (words,) = given
    monkeypatch.setattr(ViTCLI, "_run_subcommand", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["train.py"])
    cli = train.main(["fit", *words, *CPU])
    assert cli.model.hparams.sigreg_weight == 0.05
    assert cli.trainer.limit_test_batches == 0
