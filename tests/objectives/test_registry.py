"""A new objective is a class and one line in the registry: everything else reads what it says of itself."""

import json

import pytest
import torch
from PIL import Image

import vit
from tests.objectives.toy import Brightness
from tests.tiny import TINY
from vit.objectives import OBJECTIVES

TOY = [*TINY, "--model", "Brightness", "--model.num_classes", "0", "--model.ema_decay", "0.9", "--experiment", "toy"]


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "Brightness", Brightness)


def test_an_objective_without_accuracy_trains_and_is_resumed_bit_for_bit(registered, whole_and_resumed, folder):
    whole, resumed = whole_and_resumed(Brightness, *TOY)
    assert list(whole) == list(resumed)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    results = json.loads((folder / "runs/resumed/version_1/results.json").read_text())
    assert results["objective"] == "Brightness"
    assert not [name for name in results if "accuracy" in name]


def test_it_is_tested_predicted_reported_and_drawn_and_its_encoder_loads(registered, run, folder, capsys, pictures):
    run("fit", *TOY)
    assert "val_error 0." in (printed := capsys.readouterr().out)
    assert "test_error: 0." in printed
    place = folder / "runs/toy/version_0"
    assert {path.name for path in place.glob("*.png")} == {"curves.png", "dot.png"}
    page = (place / "report.html").read_text()
    assert "Test error" in page
    assert "<h2>The error on test images</h2>" in page
    run("test", "--ckpt_path", place)
    tested, trained = (
        json.loads((path / "results.json").read_text()) for path in (place / "evaluations/test_last_0", place)
    )
    assert tested["test_error"] == pytest.approx(trained["test_error"])
    Image.new("L", (8, 8), 128).save(folder / "grey.png")
    run("predict", "--ckpt_path", place, "--data.root", "grey.png", "--output", "rows.csv")
    assert (folder / "rows.csv").read_text().startswith("file,brightness\ngrey.png,0.")
    model = vit.load(place / "checkpoints/last.ckpt")
    state = torch.load(place / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(model.blocks[1].mlp.fc2.weight, state["network.blocks.1.mlp.fc2.weight"])
    assert (model.num_classes, model.embed_dim) == (0, 8)
