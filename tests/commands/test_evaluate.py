"""``vit-attention evaluate``: frozen features and a simple classifier."""

import pytest
import torch
from PIL import Image

import vit
from tests.tiny import CPU, MODEL
from vit.commands import evaluate
from vit.commands.evaluate import main


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


def test_images_are_cropped_as_the_model_takes_them(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            image = Image.new("RGB", (64, 64), (255, 0, 0))
            image.paste((0, 0, len(split + name)), (8, 8, 56, 56))  # a frame of an eighth of each side
            image.save(tmp_path / split / name / "0.png")
    model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=12, depth=1, num_heads=3).eval()
    model.pretrained_cfg["crop_ratio"] = 0.5
    seen = []

    def extract(_, batches):
        images = torch.cat([*batches])
        seen.append(images)
        return torch.zeros(len(images), 12)

    monkeypatch.setattr(evaluate, "load", lambda _: model)
    monkeypatch.setattr(evaluate, "extract", extract)
    main(["knn", "--checkpoint", "cifar10", "--data.root", str(tmp_path)])
    assert [images.shape for images in seen] == [(2, 3, 32, 32)] * 2
    assert all(images[:, 0].max() == 0 for images in seen)  # no red of the frame
