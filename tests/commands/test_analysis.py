"""The command ``python -m vit.analysis``: its files, its output, and its errors."""

import csv
import json
import re
import runpy
import sys

import pytest
import timm
import torch
from PIL import Image

import vit
from vit.analysis import questions
from vit.analysis.questions import QUESTIONS
from vit.analysis.trained_model import read_trained_model
from vit.commands.analysis import main
from vit.data import Digits
from vit.glossary import HEADS

SMALL = {"image_size": 8, "patch_size": 4, "in_channels": 1, "embed_dim": 12, "depth": 2, "num_heads": 3}
PICTURES = (
    *("kinds", "distances", "offsets", "pruning", "layers", "cut", "residual"),
    *("truncation", "spectra", "ranks", "probes", "rare", "positions"),
)


def save_checkpoint(path, noted=None, **kwargs):
    """Save a checkpoint as training does, of an untrained model of digits."""
    torch.manual_seed(0)
    arguments = SMALL | kwargs
    state = vit.VisionTransformer(**arguments).state_dict()
    names = Digits.class_names if kwargs.get("num_classes", 10) else None
    described = {"class_names": names, "mean": [0.3], "std": [0.4], "init": "mimetic"}
    data = {"class_path": "vit.data.Digits", "init_args": {}} if noted is None else noted
    torch.save(
        {
            "hyper_parameters": arguments | described,
            "state_dict": {f"vit.{name}": x for name, x in state.items()},
            "data": data,
        },
        path,
    )
    return str(path)


@pytest.fixture(scope="module")
def analysed(tmp_path_factory):
    """The folder that the command wrote, and what it printed."""
    folder = tmp_path_factory.mktemp("analysed")
    save_checkpoint(folder / "last.ckpt")
    printed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.analysis.head_removal.ROUNDS", 1)
        patch.setattr("builtins.print", lambda *words, **_: printed.append(" ".join(map(str, words))))
        main(["--checkpoint", str(folder / "last.ckpt"), "--images", "40", "--out", str(folder / "out")])
    return folder / "out", "\n".join(printed)


def test_it_writes_a_page_a_table_and_the_pictures(analysed):
    folder, printed = analysed
    assert {path.name for path in folder.iterdir()} == {
        "index.html",
        "heads.csv",
        *(f"{name}.png" for name in PICTURES),
    }
    assert {f"{name}.png" for name in PICTURES} == set(questions.PICTURES)  # which are checked before the work
    for name in PICTURES:
        with Image.open(folder / f"{name}.png") as picture:
            assert min(picture.size) > 200
    assert printed.splitlines()[-1] == str(folder / "index.html")


def test_every_question_is_answered_beside_its_control(analysed):
    folder, printed = analysed
    page = (folder / "index.html").read_text(encoding="utf-8")
    for question in QUESTIONS:
        assert question in page
        assert re.search(rf"^{re.escape(question)} [A-Z0-9].*\n  Control: [A-Z]", printed, re.MULTILINE)
    assert "Not measured" not in page
    assert "nan" not in printed
    assert "Digits: right on" in page
    assert "with new random weights, drawn as for this training (init mimetic)" in page


def test_the_table_has_a_row_for_each_head_and_every_measure(analysed):
    with (analysed[0] / "heads.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["layer"], row["head"]) for row in rows] == [(str(i // 3), str(i % 3)) for i in range(6)]
    measures = {"kind", "distance", "offset_down", "importance_gate", "importance_ablation", "importance_weight"}
    measures |= {"follows", "fall_without", "probe_class_accuracy", "probe_colour", "probe_position", "rare_patches"}
    assert measures <= set(rows[0])
    assert all(value for row in rows for value in row.values())


@pytest.fixture
def folder_of_photographs(tmp_path):
    """Class folders of all classes of the packaged model."""
    for number, name in enumerate(vit.load("cifar10").pretrained_cfg["class_names"]):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(6):
            color = (25 * number, 255 - 25 * number, 40 * index)
            Image.new("RGB", (40, 36), color).save(tmp_path / "photos" / name / f"{index}.png")
    return str(tmp_path / "photos")


def test_the_packaged_model_and_weights_of_another_library_are_read_with_a_folder(folder_of_photographs, tmp_path):
    packaged = read_trained_model("cifar10", folder_of_photographs, 20)
    assert packaged.held_out.images.shape == (10, 3, 32, 32)
    assert packaged.model.config == packaged.untrained.config
    assert not torch.equal(packaged.model.head.weight, packaged.untrained.head.weight)
    assert "before training" not in " ".join(packaged.facts()[:1])
    assert "in the order of their names" not in " ".join(packaged.facts())
    torch.manual_seed(0)
    theirs = timm.models.VisionTransformer(
        img_size=16, patch_size=4, embed_dim=64, depth=1, num_heads=1, num_classes=10
    )
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    vit.save(vit.load(tmp_path / "theirs.pth", num_heads=1, image_size=16), tmp_path / "ours.safetensors")
    foreign = read_trained_model(str(tmp_path / "ours.safetensors"), folder_of_photographs, 20)
    assert foreign.held_out.images.shape == (10, 3, 16, 16)
    assert "The model does not name its classes: the class folders were taken in the order" in " ".join(foreign.facts())


def test_what_is_assumed_of_the_weights_is_said(folder_of_photographs, tmp_path, monkeypatch, capsys):
    model = vit.VisionTransformer(image_size=16, patch_size=4, embed_dim=12, depth=1, num_heads=3, num_classes=10)
    vit.save(model, tmp_path / "theirs", format="timm")
    config = json.loads((tmp_path / "theirs/config.json").read_text())
    config["pretrained_cfg"] |= {"interpolation": "bilinear", "mean": [0.5] * 3, "std": [0.5] * 3}
    (tmp_path / "theirs/config.json").write_text(json.dumps(config))
    monkeypatch.setattr(questions, "QUESTIONS", {})
    command = ["--checkpoint", str(tmp_path / "theirs"), "--data.root", folder_of_photographs]
    main([*command, "--images", "20", "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert f"note: assumed of {tmp_path / 'theirs'}: bicubic scaling of images, in place of bilinear" in said


def test_what_a_mechanism_does_not_allow_is_said_and_the_rest_is_measured(tmp_path, capsys):
    save_checkpoint(tmp_path / "talking.ckpt", attention="talking", depth=1)
    main(["--checkpoint", str(tmp_path / "talking.ckpt"), "--images", "20", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "How many heads can go? Not measured: heads of TalkingHeadsAttention cannot be pruned" in printed
    assert "Is attention low-rank? With the attention of every image" in printed
    assert "Not measured: heads of TalkingHeadsAttention" in (tmp_path / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--checkpoint", "gone.ckpt"], "no model at gone.ckpt"),
        (["--checkpoint", "last.ckpt", "--images", "19"], "--images (19) must be at least 20"),
        (["--checkpoint", "last.ckpt", "--data.root", "gone"], "no folder gone"),
        (["--checkpoint", "headless.ckpt"], "headless.ckpt has no classes (num_classes 0), as the encoder of a reader"),
        (
            ["--checkpoint", "unknown.ckpt"],
            "does not say what data it was trained on: name its folder by --data.root DIR",
        ),
        (["--checkpoint", "cifar10"], "the model does not say what data it was trained on: name its folder by"),
        ([], "the following arguments are required: --checkpoint"),
        (["--checkpoint", "last.ckpt", "--strange"], "unrecognized arguments: --strange"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, arguments, error):
    monkeypatch.chdir(tmp_path)
    save_checkpoint(tmp_path / "last.ckpt")
    save_checkpoint(tmp_path / "unknown.ckpt", noted={})
    save_checkpoint(tmp_path / "headless.ckpt", num_classes=0)
    with pytest.raises(SystemExit) as status:
        main(arguments)
    assert status.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert error in line
    assert not (tmp_path / "analysed").exists()


def test_it_runs_as_a_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["vit.analysis", "--help"])
    monkeypatch.delitem(sys.modules, "vit.commands.analysis")
    with pytest.raises(SystemExit) as status:
        runpy.run_module("vit.analysis", run_name="__main__")
    assert status.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "heads.csv" in printed
    assert all(f" {name} {word}" in printed for name, word in HEADS.items())
