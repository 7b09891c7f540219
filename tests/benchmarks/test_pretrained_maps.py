"""The benchmark of maps of pretrained encoders, with trainings that take no time."""

import json
from pathlib import Path

import pretrained_maps
import pytest
from pretrained_maps import MAPS, STEPS, main, score_maps, typed

import train
import vit
from tests.tiny import CPU
from vit.commands.training_cli import ViTCLI
from vit.data.planted import planted_digits
from vit.explain import CONTROLS, explain

ROOT = Path(__file__).parents[2]
SHAPE = {
    "in_channels": 1,
    "patch_size": 4,
    "embed_dim": 64,
    "depth": 4,
    "num_heads": 4,
    "mlp_ratio": 2.0,
    "pool": "cls",
}


@pytest.fixture
def encoder():
    model = vit.VisionTransformer(32, 4, 1, embed_dim=16, depth=2, num_heads=2, num_classes=0).eval()
    model.pretrained_cfg |= {"mean": [0.25], "std": [0.5]}
    return model


@pytest.mark.parametrize("learned_by", STEPS)
def test_encoders_of_one_shape_learn_on_canvases_for_their_steps(learned_by, tmp_path, monkeypatch):
    monkeypatch.setattr(ViTCLI, "_run_subcommand", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["train.py"])
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    cli = train.main(["fit", *typed(learned_by, seed=2), *CPU])
    assert cli.config["fit"].seed_everything == 2
    assert type(cli.datamodule).__name__ == "PlantedDigits"
    network = cli.model.network if learned_by == "labels" else cli.model.judged
    assert {name: network.config[name] for name in SHAPE} == SHAPE
    length = (cli.trainer.max_epochs, 4) if learned_by == "labels" else (cli.trainer.max_steps, STEPS[learned_by])
    assert length[0] == length[1]
    assert cli.trainer.precision == "32-true"


def test_a_hit_is_a_canvas_whose_highest_patch_is_on_the_digit(encoder):
    pixels, _, boxes = planted_digits("test")
    maps = explain(encoder, (pixels[:20] / 255 - 0.25) / 0.5, "attention")
    places = [divmod(patch, 8) for patch in maps.flatten(1).argmax(dim=1).tolist()]
    hits = [
        top <= 4 * row < top + height and left <= 4 * column < left + width
        for (row, column), (top, left, height, width) in zip(places, boxes[:20].tolist(), strict=True)
    ]
    rows = {row["method"]: row for row in score_maps(encoder, 20)}
    assert rows["attention"]["hits"][0] == pytest.approx(sum(hits) / 20)
    assert {*rows} == {*MAPS, *CONTROLS}


def test_each_training_is_a_cell_and_what_is_there_is_not_trained_again(encoder, tmp_path, monkeypatch, unpadded):
    trained = []

    def train_nothing(name, arguments):
        trained.append(name)
        facts = {"steps": 3, "petaflop": 0.0134, "seconds": 1.0, "parameters": 9, "command": "python train.py fit"}
        return facts | {"test_accuracy": 0.5 + 0.25 * len(trained), "scores": {"knn_accuracy": 0.75}}

    monkeypatch.setattr(pretrained_maps, "train", train_nothing)
    monkeypatch.setattr(pretrained_maps, "newest_checkpoint", lambda *_: tmp_path)
    monkeypatch.setattr(pretrained_maps.vit, "load", lambda _: encoder)
    monkeypatch.setattr(pretrained_maps, "STEPS", {"labels": 3, "mae": 3})
    asked = ["--images", "10", "--output", str(tmp_path)]
    main([*asked, "--seeds", "0"])
    main([*asked, "--seeds", "0", "1"])
    assert trained == ["labels, seed 0", "mae, seed 0", "labels, seed 1", "mae, seed 1"]
    cells = json.loads((tmp_path / "pretrained_maps.json").read_text())
    assert cells["mae, seed 1"]["knn"] == 0.75
    page = unpadded((tmp_path / "pretrained_maps.md").read_text())
    assert "seeds 0, 1;" in page
    assert "classify 100.0 ± 35.4 % of" in page.replace("\n", " ")
    hits = cells["mae, seed 0"]["rows"][0]["hits"][0]
    assert f"| mae | attention | {hits:.3f} ± 0.000 |" in page
    assert "| ink (control) |" in page
