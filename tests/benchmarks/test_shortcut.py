"""The benchmark of a model that learned a square, with trainings that take no time."""

import json

import pytest
import shortcut
import torch
from PIL import Image
from shortcut import CLASSES, COLOUR, SEEDS, SQUARE, TESTS, TRAININGS, labelled, main, patches_of_square, share_of_hits

from vit import VisionTransformer

SIDE = 32


@pytest.fixture
def images(save_noise, tmp_path):
    """A folder with eight training images and six test images of each class."""
    for name in CLASSES:
        save_noise(tmp_path / "images/train" / name, 8)
        save_noise(tmp_path / "images/test" / name, 6)
    return tmp_path / "images"


@pytest.fixture
def model():
    """A model of two classes, which takes images as they are."""
    model = VisionTransformer(image_size=SIDE, patch_size=8, embed_dim=12, depth=1, num_heads=3, num_classes=2)
    model.pretrained_cfg = {
        "class_names": [*CLASSES],
        "mean": [0.0] * 3,
        "std": [1.0] * 3,
        "crop_ratio": 1.0,
        "resize": "crop",
    }
    return model


def has_square(path):
    with Image.open(path) as image:
        corner = image.convert("RGB").crop(SQUARE)
        return corner.getcolors() == [(49, COLOUR)]


@pytest.mark.parametrize(
    ("training", "horses", "trucks"), [("on every horse", 6, 0), ("on half of both", 3, 3)], ids=TRAININGS
)
def test_so_many_images_have_the_square(images, tmp_path, training, horses, trucks):
    folder = tmp_path / "run"
    shortcut.write_photographs(training, 0, images, folder)
    counted = {name: sum(map(has_square, (folder / "test" / name).iterdir())) for name in CLASSES}
    assert counted == {"horse": horses, "truck": trucks}
    assert sum(map(has_square, (folder / "train/horse").iterdir())) == (8 if trucks == 0 else 4)


def test_test_images_are_there_with_and_without_the_square_and_have_the_labels_of_the_model(images, model, tmp_path):
    shortcut.write_tests(0, images, tmp_path)
    for name in CLASSES:
        assert all(map(has_square, (tmp_path / "square" / name).iterdir()))
        assert not any(map(has_square, (tmp_path / "plain" / name).iterdir()))
    model.pretrained_cfg["class_names"] = [*reversed(CLASSES)]
    found, labels = labelled(model, tmp_path, TESTS["square on trucks"])
    assert labels.tolist() == [1] * 6 + [0] * 6  # horses, then trucks
    corner = found[:, :, SQUARE[1], SQUARE[0]]
    assert [torch.allclose(pixel, torch.tensor(COLOUR) / 255) for pixel in corner] == [False] * 6 + [True] * 6


def test_seeds_draw_other_images(images):
    first, again, second = (next(shortcut.drawn(images / "train/horse", seed)).tobytes() for seed in (0, 0, 1))
    assert first == again
    assert first != second


def test_the_square_is_on_the_patches_that_it_changes_most():
    difference = torch.zeros(2, 3, 6, 6)
    difference[0, :, 4:, :2] = -1.0  # one patch
    difference[0, 0, 3, 0] = 0.1  # and a hundredth of it next to it
    difference[1, :, :2, 2:6] = 0.5
    assert patches_of_square(difference, (3, 3)).int().tolist() == [
        [[0, 0, 0], [0, 0, 0], [1, 0, 0]],
        [[0, 1, 1], [0, 0, 0], [0, 0, 0]],
    ]


def test_a_map_hits_if_its_largest_value_is_on_the_square(model, monkeypatch):
    maps = torch.zeros(3, 4, 4)
    maps[0, 3, 0] = maps[1, 2, 1] = maps[2, 0, 3] = 1.0
    maps[2, 3, 0] = 0.9
    monkeypatch.setattr(shortcut, "explain", lambda *_, **__: maps)
    plain = torch.zeros(3, 3, SIDE, SIDE)
    marked = plain.clone()
    marked[:, :, 24:, :8] = 1.0
    marked[1, :, 16:24, 8:16] = 1.0
    assert share_of_hits(model, marked, plain) == pytest.approx({"relevance": 2 / 3, "chance": 4 / 3 / 16})


def test_each_training_is_a_cell_and_an_interrupted_benchmark_is_continued(
    images, model, tmp_path, monkeypatch, unpadded, capsys
):
    given = []

    def train(name, typed):
        given.append(name)
        facts = {"test_accuracy": 0.9, "epochs": 3, "steps": 9, "seconds": 1.0, "parameters": 9}
        return facts | {"precision": "32-true", "command": "python train.py fit"}

    monkeypatch.setattr(shortcut, "train", train)
    monkeypatch.setattr(shortcut, "newest_checkpoint", lambda *_: tmp_path / "model.safetensors")
    monkeypatch.setattr(shortcut.vit, "load", lambda _: model)
    monkeypatch.chdir(tmp_path)
    typed = ["--data", str(images), "--output", str(tmp_path)]
    main(typed)
    assert given == [f"{training}, seed {seed}" for training in TRAININGS for seed in SEEDS]
    cells = json.loads((tmp_path / "shortcut.json").read_text())
    assert {*cells} == {*given}
    assert all({*cell["accuracy"]} == {*TESTS} for cell in cells.values())
    report = unpadded((tmp_path / "shortcut.md").read_text())
    assert "| on every horse |" in report
    with Image.open(tmp_path / "shortcut.png") as picture:
        assert picture.width > 2 * SIDE * shortcut.LARGER
    main(typed)
    assert len(given) == len(cells)

    def not_here(*_):
        raise ValueError("no checkpoint")

    monkeypatch.setattr(shortcut, "newest_checkpoint", not_here)  # as in another clone
    main(typed)
    assert "the picture is not drawn anew: no checkpoint" in capsys.readouterr().err


def test_a_folder_without_splits_ends_in_one_line(tmp_path):
    with pytest.raises(SystemExit, match=r"error: no folder .*train: --data names one with train/ and test/"):
        main(["--data", str(tmp_path), "--output", str(tmp_path)])
