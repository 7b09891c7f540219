"""A split that holds out other images than at the training is told: some of them were trained on."""

import json
from pathlib import Path

import pytest
from PIL import Image

from tests.tiny import CPU, MODEL

NOTE = "note: the split has changed since the training, so {} images may include images that the model"


def add_images(folder: Path, *numbers: int) -> None:
    for place, level in (("ant", 0), ("bee", 100)):
        (folder / place).mkdir(parents=True, exist_ok=True)
        for number in numbers:
            Image.new("L", (8, 8), level + number).save(folder / place / f"{number:02}.png")


@pytest.fixture
def trained_on_photos(run, folder, capsys):
    """A folder of images that a run was trained on, and what a further command prints."""
    add_images(folder / "photos", *range(10))
    data = ["--data", "ImageFolder", "--data.root", "photos", "--data.num_workers", 0]
    run("fit", *data, *MODEL, *CPU, "--trainer.max_epochs", 1, "--experiment", "photos")

    def said(command: str, *options: object) -> str:
        capsys.readouterr()
        run(command, "--ckpt_path", "runs/photos/version_0", *options)
        return capsys.readouterr().out

    return said


@pytest.mark.parametrize(
    ("command", "options", "images"),
    [
        ("test", ["--data.test_fraction", 0.4], "test"),
        ("test", ["--data.folds", 2, "--data.fold", 1], "test"),
        ("validate", ["--data.val_fraction", 0.4], "val"),
        ("fit", ["--trainer.max_epochs", 2, "--data.folds", 2, "--data.fold", 0], "val and test"),
    ],
)
def test_another_split_of_the_same_images_is_told(trained_on_photos, command, options, images):
    assert trained_on_photos(command, *options).count(NOTE.format(images)) == 1


def test_images_that_were_added_are_told_and_the_results_say_so(trained_on_photos, folder):
    add_images(folder / "photos", *range(20, 30))
    assert NOTE.format("test") in trained_on_photos("test")
    evaluation = folder / "runs/photos/version_0/evaluations/test_last_0"
    assert json.loads((evaluation / "results.json").read_text())["same_split"] is False


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("test", []),
        ("validate", []),
        ("test", ["--data.val_fraction", 0.4]),  # which holds out the same test images
        ("test", ["--data.label_noise", 0.5]),
        ("fit", ["--trainer.max_epochs", 2, "--data.batch_size", 5, "--data.label_noise", 0.5]),
    ],
)
def test_the_same_images_are_not(trained_on_photos, command, options):
    assert "note: " not in trained_on_photos(command, *options)


def test_other_images_are_not_compared(trained_on_photos, folder):
    add_images(folder / "others", *range(30, 40))
    assert "note: " not in trained_on_photos("test", "--data.root", "others")
