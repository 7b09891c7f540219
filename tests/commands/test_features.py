"""The commands evaluate and features."""

import pytest
import torch
from PIL import Image

from vit.commands.evaluate import _split
from vit.commands.evaluate import main as evaluate
from vit.commands.features import main as features
from vit.features import read_features


@pytest.fixture
def photos(tmp_path):
    """Class folders of red and blue pictures."""
    for split, count in (("train", 6), ("test", 4)):
        for name, colour in (("red", (220, 30, 30)), ("blue", (30, 30, 220))):
            for number in range(count):
                path = tmp_path / "photos" / split / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                shade = torch.tensor(colour) + 5 * number
                Image.new("RGB", (40, 32), tuple(shade.tolist())).save(path)
    return tmp_path / "photos"


@pytest.mark.parametrize("classifier", ["knn", "linear"])
def test_evaluate_prints_the_accuracy_of_frozen_features(photos, classifier, capsys):
    evaluate([classifier, "--checkpoint", "cifar10", "--data.root", str(photos)])
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith(f"{classifier}: 100.00 % of 8 test images, from 12 training images of 2 classes, in ")
    )


def test_evaluate_takes_as_many_images_as_asked(photos, capsys):
    evaluate(["knn", "--checkpoint", "cifar10", "--data.root", str(photos), "--images", "4"])
    assert "of 4 test images, from 4 training images" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--max_pixels", "--data.max_pixels"])
def test_evaluate_refuses_images_above_a_limit_in_pixels(photos, option, capsys):
    with pytest.raises(SystemExit):
        evaluate(["knn", "--checkpoint", "cifar10", "--data.root", str(photos), option, "9"])
    assert "more than max_pixels (9)" in capsys.readouterr().err


def test_features_leaves_out_images_above_a_limit_in_pixels(photos, tmp_path, capsys):
    (path := tmp_path / "one").mkdir()
    Image.new("RGB", (8, 8)).save(path / "small.png")
    Image.new("RGB", (9, 8)).save(path / "large.png")
    features([str(path), "--checkpoint", "cifar10", "-o", str(tmp_path / "f.safetensors"), "--max_pixels", "64"])
    assert read_features(tmp_path / "f.safetensors")[0] == ["small.png"]
    assert "large.png: it has 9 x 8 pixels, more than max_pixels (64)" in capsys.readouterr().err


def test_the_test_images_are_split_and_counted_as_in_the_training():
    split = {"test_fraction": 0.3, "duplicates": "drop", "max_pixels": 9}
    assert _split({"class_path": "ImageFolder", "init_args": split | {"batch_size": 5}}, "photos") == split


def test_features_are_written_with_the_names_of_the_images(photos, tmp_path, capsys):
    (photos / "test/red/damaged.png").write_bytes(b"no image")
    features([str(photos / "test"), "--checkpoint", "cifar10", "-o", str(tmp_path / "f.safetensors")])
    names, found = read_features(tmp_path / "f.safetensors")
    assert names == [f"{name}/{number}.png" for name in ("blue", "red") for number in range(4)]
    assert found.shape == (8, 128)
    printed = capsys.readouterr()
    told = f"images of {photos / 'test'}: 9 files\n"
    assert printed.out == f"{told}{tmp_path / 'f.safetensors'}: 8 images, 128 channels each\n"
    assert "left out" in printed.err


def test_features_are_computed_by_an_optimised_program_on_request(photos, tmp_path, monkeypatch):
    asked = []

    def doubled(model, dtype):
        asked.append((model.num_classes, dtype))
        return lambda images: 2 * model(images)

    monkeypatch.setattr("vit.commands.features.optimize", doubled)
    words = [str(photos / "test"), "--checkpoint", "cifar10", "-o"]
    features([*words, str(tmp_path / "model.safetensors")])
    features([*words, str(tmp_path / "program.safetensors"), "--optimize", "bfloat16"])
    (_, expected), (_, found) = (read_features(tmp_path / f"{name}.safetensors") for name in ("model", "program"))
    assert asked == [(0, torch.bfloat16)]
    torch.testing.assert_close(found, 2 * expected)


@pytest.mark.parametrize(
    ("command", "typed", "message"),
    [
        (evaluate, ["knn", "--checkpoint", "cifar10", "--data.root", "nowhere"], "nowhere"),
        (evaluate, ["svm", "--checkpoint", "cifar10", "--data.root", "x"], "invalid choice: 'svm'"),
        (features, ["nowhere", "--checkpoint", "cifar10", "-o", "f.safetensors"], "no image at nowhere"),
        (features, [".", "--checkpoint", "none.ckpt", "-o", "f.safetensors"], "no images in the folder"),
    ],
)
def test_a_mistake_is_one_line(command, typed, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        command(typed)
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("kind", "root", "taken"),
    [
        ("ImageFolder", "photos", {"test_fraction": 0.3, "folds": 3, "fold": 1}),
        ("ImageFolder", "others", {"test_fraction": 0.3}),
        ("ImageTable", "photos", {"test_fraction": 0.3}),
    ],
)
def test_evaluate_holds_out_the_test_images_of_the_training(kind, root, taken):
    noted = {"root": "./photos", "test_fraction": 0.3, "folds": 3, "fold": 1, "seed": 5}
    assert _split({"class_path": f"vit.data.{kind}", "init_args": noted}, root) == taken
    assert _split({}, root) == {}
