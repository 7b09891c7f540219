"""What a checkpoint brings to a command line."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from tests.tiny import CPU
from vit.commands.defaults import read_defaults
from vit.commands.typed_arguments import read_typed


@pytest.fixture
def of_folder(finished) -> str:
    """A checkpoint that was trained on the folder ``photos``."""
    path = finished / "checkpoints/last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["data"] = {"class_path": "vit.data.ImageFolder", "init_args": {"root": "photos", "batch_size": 7}}
    torch.save(checkpoint, path)
    return str(path)


@pytest.mark.parametrize(
    ("typed", "root"),
    [([], "photos"), (["--data", "ImageFolder"], "photos"), (["--data", "ImageTable", "--data.table", "t.csv"], None)],
    ids=["no data", "the same", "others"],
)
def test_the_folder_of_the_training_is_not_that_of_other_data(of_folder, typed, root):
    defaults = read_defaults(read_typed(["test", "--ckpt_path", of_folder, *typed]))
    arguments = defaults.arguments["data"]["init_args"]
    assert (arguments.get("root"), arguments["batch_size"]) == (root, 7)


@pytest.mark.parametrize(
    ("known", "typed", "kept"),
    [
        ({"table": "t.csv", "root": "old"}, [], {"root": "old"}),
        ({"table": "t.csv", "root": "old"}, ["--data.table", "./t.csv"], {"root": "old"}),
        ({"table": "t.csv", "root": "old"}, ["--data.table", "new/t.csv"], {}),
        ({"table": "t.csv", "root": "old"}, ["--data.table=new/t.csv", "--data.root=old"], {"root": "old"}),
        ({"urls": "a.tar", "test_urls": "b.tar"}, ["--data.batch_size", "3"], {"test_urls": "b.tar"}),
        ({"urls": "a.tar", "test_urls": "b.tar"}, ["--data.urls", "c.tar"], {}),
        (
            {"urls": "a.tar", "val_urls": "d", "test_urls": "b"},
            ["--data.urls=c", "--data.val_urls=d"],
            {"val_urls": "d"},
        ),
    ],
    ids=str,
)
def test_a_place_of_the_training_does_not_stay_beside_another_table_or_other_shards(of_folder, known, typed, kept):
    checkpoint = torch.load(of_folder, weights_only=True)
    kind = "ImageTable" if "table" in known else "Shards"
    checkpoint["data"] = {"class_path": f"vit.data.{kind}", "init_args": known}
    torch.save(checkpoint, of_folder)
    arguments = read_defaults(read_typed(["test", "--ckpt_path", of_folder, *typed])).arguments["data"]["init_args"]
    companions = ("root", "val_urls", "test_urls")
    assert {name: arguments[name] for name in companions if name in arguments} == kept


@pytest.mark.parametrize(
    ("typed", "are_kept"),
    [
        ([], True),
        (["--data.root", "../{here}/photos"], True),
        (["--data.root", "others"], False),
        (["--data", "ImageTable", "--data.table=t.csv"], False),
        (["--config", "others.yaml"], False),
    ],
    ids=["no data", "the same", "another folder", "another kind", "another folder in a config"],
)
def test_the_folds_of_the_training_are_not_those_of_other_images(of_folder, folder, capsys, typed, are_kept):
    checkpoint = torch.load(of_folder, weights_only=True)
    checkpoint["data"]["init_args"] |= {"folds": 5, "fold": 1}
    torch.save(checkpoint, of_folder)
    (folder / "others.yaml").write_text("data: {class_path: ImageFolder, init_args: {root: others}}")
    typed = [word.format(here=folder.name) for word in typed]
    arguments = read_defaults(read_typed(["test", "--ckpt_path", of_folder, *typed])).arguments["data"]["init_args"]
    assert (arguments.get("folds"), arguments.get("fold")) == ((5, 1) if are_kept else (None, None))
    said = "" if are_kept else f"note: the folds of {of_folder} are left out, as these are other images: for a copy of "
    assert capsys.readouterr().err[: len(said) or None] == said
    read_defaults(read_typed(["test", "--ckpt_path", of_folder, *typed, "--data.folds", "5", "--data.fold", "1"]))
    assert capsys.readouterr().err == ""


def test_folds_of_data_that_are_downloaded_hold_in_every_folder(of_folder):
    checkpoint = torch.load(of_folder, weights_only=True)
    checkpoint["data"] = {"class_path": "vit.data.CIFAR10", "init_args": {"root": "data", "folds": 5, "fold": 1}}
    torch.save(checkpoint, of_folder)
    typed = read_typed(["test", "--ckpt_path", of_folder, "--data.root", "elsewhere"])
    assert read_defaults(typed).arguments["data"]["init_args"]["fold"] == 1


def test_a_table_that_is_missing_is_asked_for(error_of, of_folder):
    answer = error_of("test", "--ckpt_path", of_folder, "--data", "ImageTable")
    assert answer == "error: an argument is missing: add --data.table, for ImageTable"


def test_a_model_normalises_a_data_set_without_that_option_as_the_images_of_its_training(run, of_folder):
    checkpoint = torch.load(of_folder, weights_only=True)
    checkpoint["hyper_parameters"] |= {"mean": [0.449], "std": [0.226]}
    torch.save(checkpoint, of_folder)
    tested = run("test", "--ckpt_path", of_folder, "--data", "Digits", *CPU)
    assert (tested.model.hparams.mean, tested.model.hparams.std) == ([0.449], [0.226])
    image = tested.datamodule.sets["test"].images[:1]
    network = vit.load(of_folder).eval()
    with torch.no_grad():
        expected = network((image / 255 - 0.449) / 0.226)
        torch.testing.assert_close(tested.model.eval()(image), expected)


def test_a_prediction_of_data_that_are_named_takes_their_folds(of_folder):
    checkpoint = torch.load(of_folder, weights_only=True)
    checkpoint["data"]["init_args"] |= {"folds": 5, "fold": 1}
    torch.save(checkpoint, of_folder)
    named = read_defaults(read_typed(["predict", "--ckpt_path", of_folder, "--data", "ImageFolder"]))
    assert named.words == []
    assert (named.arguments["data"]["init_args"]["folds"], named.arguments["data"]["init_args"]["fold"]) == (5, 1)
    images = read_defaults(read_typed(["predict", "--ckpt_path", of_folder, "--data.root", "new"]))
    assert images.words[0] == "--data"
    assert "data" not in images.arguments


@pytest.fixture
def weights(folder) -> vit.VisionTransformer:
    """Weights without a run, m.safetensors, that see the middle of images, and a folder of images, photos."""
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 4, "embed_dim": 12, "depth": 1, "num_heads": 3, "num_classes": 2}
    model = vit.VisionTransformer(**sizes).eval()
    torch.nn.init.normal_(model.head.weight)
    model.pretrained_cfg = {"mean": [0.4] * 3, "std": [0.2] * 3, "class_names": ["a", "b"], "crop_ratio": 0.5}
    vit.save(model, "m.safetensors")
    for number in range(8):
        pixels = np.random.default_rng(number).integers(256, size=(16, 16, 3), dtype=np.uint8)
        path = folder / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return model


def test_weights_without_a_run_are_tested_on_the_part_of_an_image_that_they_see(run, weights):
    tested = run("test", "--ckpt_path", "m.safetensors", "--data", "ImageFolder", "--data.root", "photos", *CPU)
    assert tested.datamodule.crop_ratio == 0.5
    typed = ["--data.root", "photos", "--data.crop_ratio", "0.8"]
    assert (
        run("test", "--ckpt_path", "m.safetensors", "--data", "ImageFolder", *typed, *CPU).datamodule.crop_ratio == 0.8
    )
    start = ["--model.init_from", "m.safetensors", "--trainer.max_steps", "1", "--data.batch_size", "2"]
    trained = run("fit", "--data", "ImageFolder", "--data.root", "photos", *start, *CPU)
    assert trained.datamodule.crop_ratio == 1.0
    assert vit.load(trained.run_folder / "checkpoints/last.ckpt").pretrained_cfg["crop_ratio"] == 1.0


def test_weights_without_a_mean_are_tested_and_predict_alike(run, weights, capsys):
    vit.save(weights, "bare.safetensors", format="timm")
    bare = ["--ckpt_path", "bare.safetensors", "--model.num_heads", "2", *CPU]
    tested = run("test", *bare, "--data", "ImageFolder", "--data.root", "photos")
    assert "note: assumed of bare.safetensors: " in capsys.readouterr().err
    predicted = run("predict", *bare, "--data.root", "photos/a/0.png", "--output", "p.csv")
    assert tested.model.mean.unique().tolist() == predicted.model.mean.unique().tolist() == [0.5]
    assert tested.model.std.unique().tolist() == predicted.model.std.unique().tolist() == [0.5]


def test_weights_of_images_in_colour_are_tested_on_grey_ones(run, weights, folder):
    weights.pretrained_cfg["mean"] = [0.3, 0.4, 0.5]
    vit.save(weights, "m.safetensors")
    for path in folder.glob("photos/*/*.png"):
        Image.open(path).convert("L").save(path)
    tested = run("test", "--ckpt_path", "m.safetensors", "--data", "ImageFolder", "--data.root", "photos", *CPU)
    assert tested.datamodule.sets["test"].images.shape[1] == 3
    assert (tested.model.hparams.in_channels, tested.model.hparams.mean) == (3, [0.3, 0.4, 0.5])


def test_a_checkpoint_of_grey_images_is_tested_on_images_in_colour(run, of_folder, folder):
    for number in range(10):
        (folder / f"photos/test/{number}").mkdir(parents=True)
        Image.new("RGB", (8, 8), (20 * number, 9, 200)).save(folder / f"photos/test/{number}/0.png")
    tested = run("test", "--ckpt_path", of_folder, *CPU)
    assert tested.datamodule.sets["test"].images.shape == (10, 1, 8, 8)
    assert (tested.model.hparams.in_channels, tested.model.hparams.mean) == (1, [0.305])


def test_weights_of_several_labels_predict_each_by_itself(run, weights):
    weights.pretrained_cfg["thresholds"] = [0.25, 0.75]
    vit.save(weights, "m.safetensors")
    run("predict", "--ckpt_path", "m.safetensors", "--data.root", "photos/a/0.png", "--output", "p.csv", *CPU)
    (row,) = csv.DictReader(Path("p.csv").read_text().splitlines())
    pixels = torch.from_numpy(np.array(Image.open("photos/a/0.png"))).permute(2, 0, 1)[None, :, 4:12, 4:12]
    with torch.no_grad():
        a, b = weights((pixels / 255 - 0.4) / 0.2).sigmoid()[0].tolist()
    assert row["labels"] == "; ".join(name for name, is_seen in (("a", a >= 0.25), ("b", b >= 0.75)) if is_seen)
    found = dict(each.rsplit(" ", 1) for each in row["probabilities"].split("; "))
    assert {name: float(value) for name, value in found.items()} == pytest.approx({"a": a, "b": b}, abs=1e-3)
