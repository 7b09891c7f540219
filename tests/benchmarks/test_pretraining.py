"""The benchmark of learning without labels, with trainings that take no time."""

import json
from pathlib import Path

import pretraining
import pytest
from pretraining import OBJECTIVES, SEEDS, SHARES, cells_of, labelled, main, supervised

import train
import vit
from tests.tiny import CPU
from vit.commands.training_cli import ViTCLI

ROOT = Path(__file__).parents[2]


@pytest.fixture
def images(save_noise, tmp_path):
    """A folder with twelve training images and three test images of two classes."""
    for name in ("cat", "dog"):
        save_noise(tmp_path / "images/train" / name, 12)
        save_noise(tmp_path / "images/test" / name, 3)
    return tmp_path / "images"


def files_of(folder, split):
    return {path.resolve() for path in (folder / split).rglob("*.*")}


def test_labelled_images_are_a_share_of_each_class_and_those_that_choose_are_other_training_images(images, tmp_path):
    folder = labelled(images, tmp_path / "work", 0.5, seed=1)
    assert [len(files_of(folder / "train", name)) for name in ("cat", "dog")] == [6, 6]
    assert files_of(folder, "test") == files_of(images, "test")
    choosing = labelled(images, tmp_path / "work", 1.0, seed=1, held_out=True)
    assert len(files_of(choosing, "train")) == 18
    assert files_of(choosing, "train") | files_of(choosing, "test") == files_of(images, "train")
    assert labelled(images, tmp_path / "work", 0.5, seed=1) == folder


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_command_line_takes_pretraining_and_fine_tuning(objective, images, tmp_path, monkeypatch):
    monkeypatch.setattr(ViTCLI, "_run_subcommand", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["train.py"])
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    given = []
    monkeypatch.setattr(pretraining, "train", lambda _, typed: given.append(typed) or {})
    monkeypatch.setattr(pretraining, "newest_checkpoint", lambda *_: tmp_path / "none/checkpoints/last.ckpt")
    pretraining.pretrained(images, 6.0, objective, seed=2)
    module = train.main(["fit", *given[0], *CPU]).model
    assert module.judged.embed_dim == 96
    module.eval()
    vit.save(module.judged, tmp_path / "source.safetensors")
    start = ["--model.init_from", str(tmp_path / "source.safetensors")]
    tuned = train.main(["fit", *supervised(images, 2, 3, 1.0), *start, *CPU]).model
    assert tuned.network.config | {"num_classes": 0} == module.judged.config | {"patch_drop": 0.5}


def test_each_training_is_a_cell_and_an_interrupted_comparison_is_continued(images, tmp_path, monkeypatch, unpadded):
    given = []

    def trained(name, typed):
        given.append(name)
        facts = {"test_accuracy": 0.5 + 0.001 * len(given), "epochs": 3, "steps": 9, "seconds": 1.0, "parameters": 99}
        return facts | {"precision": "32-true", "seed": 0, "command": "python train.py fit"}

    source = tmp_path / "source"
    source.mkdir()
    facts = {"seconds": 1, "epochs": 2, "images_per_second": 3, "command": "", "scores": {}, "finished": True}
    (source / "results.json").write_text(json.dumps(facts))
    model = vit.VisionTransformer(embed_dim=12, depth=1, num_heads=3, num_classes=0).eval()
    model.pretrained_cfg |= {"mean": [0.5] * 3, "std": [0.5] * 3}
    monkeypatch.setattr(pretraining, "train", trained)
    monkeypatch.setattr(pretraining, "newest_checkpoint", lambda *_: source / "checkpoints/last.ckpt")
    monkeypatch.setattr(pretraining, "CLASSIFIERS", {"knn": lambda *_: 0.25})
    monkeypatch.setattr(pretraining.vit, "load", lambda _: model)
    monkeypatch.setattr(pretraining, "untrained", lambda _: model)
    for name, value in (("SHARES", (0.5,)), ("SEEDS", (0,)), ("FINETUNING", {0.5: ((2, False), (2, True))})):
        monkeypatch.setattr(pretraining, name, value)
    monkeypatch.setattr(pretraining, "SCRATCH", {0.5: ((1, False), (1, True), (3, False), (3, True))})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    typed = ["--data", str(images), "--output", str(tmp_path), "--minutes", "0.1"]
    main(typed)
    cells = json.loads((tmp_path / "pretraining.json").read_text())
    assert len(cells) == 4 + 2 * len(OBJECTIVES) + 1 + 1 + len(OBJECTIVES)
    assert given[4] == "mae, 50 % of the labels, 2 epochs, none"
    assert given[10] == "scratch, 50 % of the labels, seed 0"
    assert pretraining.best_of(cells, 0.5)["policy"] == "randaugment"
    assert pretraining.best_of(cells, 0.5, "mae")["training"]["test_accuracy"] == pytest.approx(0.506)
    page = unpadded((tmp_path / "pretraining.md").read_text())
    assert "| MaskedAutoencoder | nearest neighbours, frozen | 25.0 |" in page
    assert "| from scratch | | 51.1 |" in page.replace("|  |", "| |")

    del cells["dino, 50 % of the labels, seed 0"]
    (tmp_path / "pretraining.json").write_text(json.dumps(cells))
    given.clear()
    main(typed)
    assert given == ["dino, 50 % of the labels, seed 0"]


def test_every_row_has_three_seeds_and_three_shares():
    names = [name for name, _ in cells_of(Path("images"), Path("work"), 30.0, SHARES, OBJECTIVES)]
    assert len(names) == len(set(names)) == 18 + 10 * len(OBJECTIVES) + len(SEEDS) * len(SHARES) * (2 + len(OBJECTIVES))
