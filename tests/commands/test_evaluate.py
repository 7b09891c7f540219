"""``vit-attention evaluate``: frozen features and a simple classifier."""

import shutil

import pytest
import torch
from PIL import Image

import vit
from tests.tiny import CPU, MODEL
from vit.commands import evaluate
from vit.commands.evaluate import main
from vit.commands.models import find_model


@pytest.fixture
def photos(tmp_path):
    """Two classes of four training and two test images, and a file that is none."""
    for split, count in (("train", 4), ("test", 2)):
        for number, name in enumerate(("cat", "dog")):
            (tmp_path / split / name).mkdir(parents=True)
            for image in range(count):
                Image.new("RGB", (32, 32), (250 * number, 9 * image, 0)).save(tmp_path / split / name / f"{image}.png")
    (tmp_path / "train/cat/bad.png").write_text("no image")
    return tmp_path


def error_of(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["knn", "--checkpoint", "cifar10", *map(str, arguments)])
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_a_folder_that_is_not_there_is_answered_with_an_option_of_this_command(capsys, tmp_path):
    assert error_of(capsys, "--data.root", tmp_path / "none").startswith(f"error: no folder {tmp_path}/none: name a")


def test_the_option_that_is_advised_for_damaged_files_is_taken(capsys, photos, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(photos / ".cache"))
    assert "by --data.skip_damaged true" in error_of(capsys, "--data.root", photos)
    main(["knn", "--checkpoint", "cifar10", "--data.root", str(photos), "--data.skip_damaged", "true"])
    assert "knn: 100.00 % of 4 test images, from 8 training images of 2 classes" in capsys.readouterr().out


def test_validation_images_alone_are_told_to_be_renamed(capsys, photos, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(photos / ".cache"))
    (photos / "test").rename(photos / "val")
    answer = error_of(capsys, "--data.root", photos, "--data.skip_damaged", "true")
    assert f"{photos} has no test images: rename its folder val to test, or name a folder without splits" in answer


def test_no_test_image_was_seen_in_the_training(tmp_path, monkeypatch, run):
    for name, count in (("0", 30), ("1", 25), ("2", 40), ("3", 2)):
        for number in range(count):
            (tmp_path / "digits" / name).mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), 2 * number).save(tmp_path / "digits" / name / f"{number:02}.png")
    names = ["--data.class_names", '["3","2","1","0"]']
    folder = ["--data", "ImageFolder", "--data.root", tmp_path / "digits", "--data.test_fraction", "0.2", *names]
    trained = run("fit", *folder, *MODEL, *CPU, "--trainer.max_steps", "1").datamodule
    seen = {file for split in ("train", "val") for file in trained.sets[split].files}
    asked = {}
    monkeypatch.setattr(evaluate, "_drawn", lambda images, _: asked.setdefault(len(asked), images))
    main(["knn", "--checkpoint", "last", "--data.root", str(tmp_path / "digits")])
    assert len(asked) == 2
    assert not seen & {*asked[1].files}
    assert {*asked[0].files} == {*trained.sets["train"].files}


def test_a_note_tells_that_test_images_may_be_ones_that_the_model_was_trained_on(tmp_path, run, capsys):
    for name in ("0", "1"):
        (tmp_path / "digits" / name).mkdir(parents=True)
        for number in range(20):
            Image.new("L", (8, 8), 9 * number + int(name)).save(tmp_path / "digits" / name / f"{number:02}.png")
    folder = ["--data", "ImageFolder", "--data.root", tmp_path / "digits", "--data.test_fraction", "0.2"]
    run("fit", *folder, "--data.folds", "5", "--data.fold", "2", *MODEL, *CPU, "--trainer.max_steps", "1")
    path = find_model("last")
    shutil.copytree(tmp_path / "digits", tmp_path / "copy")
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["data"] = {"class_path": "vit.data.ImageTable", "init_args": {"table": "labels.csv", "root": None}}
    torch.save(checkpoint, tmp_path / "of_table.ckpt")
    checkpoint["data"] = {"class_path": "vit.data.Digits", "init_args": {}}
    torch.save(checkpoint, tmp_path / "of_digits.ckpt")

    def said(checkpoint, root):
        main(["knn", "--checkpoint", str(checkpoint), "--data.root", str(tmp_path / root)])
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]

    assert said(path, "digits") == said(tmp_path / "of_digits.ckpt", "digits") == []
    for checkpoint, root, trained in (
        (path, "copy", f"ImageFolder {tmp_path}/digits"),
        (tmp_path / "of_table.ckpt", "digits", "ImageTable labels.csv"),
    ):
        assert said(checkpoint, root) == [
            f"note: {checkpoint} was trained on {trained}, and held out other images than these 8 test images: it may "
            "have seen some of them"
        ]


@pytest.fixture
def seen(monkeypatch):
    """The images whose features are asked for, of each split, by a small model; and its ``pretrained_cfg``."""
    model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=12, depth=1, num_heads=3).eval()
    model.pretrained_cfg["crop_ratio"] = 1.0
    seen = []

    def extract(_, batches):
        images = torch.cat([*batches])
        seen.append(images)
        return torch.zeros(len(images), 12)

    monkeypatch.setattr(evaluate, "load", lambda _: model)
    monkeypatch.setattr(evaluate, "extract", extract)
    return seen, model.pretrained_cfg


def plant(folder, image):
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            image.putpixel((image.width // 2, image.height // 2), (0, 0, len(split + name)))  # no two are identical
            image.save(folder / split / name / "0.png")


def test_images_are_cropped_as_the_model_takes_them(tmp_path, monkeypatch, seen):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    image = Image.new("RGB", (64, 64), (255, 0, 0))
    image.paste((0, 0, 9), (8, 8, 56, 56))  # a frame of an eighth of each side
    plant(tmp_path / "photos", image)
    images, about = seen
    about["crop_ratio"] = 0.5
    main(["knn", "--checkpoint", "cifar10", "--data.root", str(tmp_path / "photos")])
    assert [part.shape for part in images] == [(2, 3, 32, 32)] * 2
    assert all(part[:, 0].max() == 0 for part in images)  # no red of the frame


def test_images_are_stretched_for_a_model_that_takes_whole_pictures(tmp_path, monkeypatch, seen):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    image = Image.new("RGB", (256, 32), (255, 0, 0))
    image.paste((0, 0, 9), (64, 0, 192, 32))
    plant(tmp_path / "photos", image)
    images, about = seen
    about["stretch"] = True
    main(["knn", "--checkpoint", "cifar10", "--data.root", str(tmp_path / "photos")])
    assert all((part[:, 0, :, [0, -1]] == 255).all() for part in images)  # both ends
