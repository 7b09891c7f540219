"""One way to name a model in all commands, and one answer where there is none."""

import json

import pytest
import torch
from PIL import Image

import vit
from tests.tiny import CPU, TINY
from vit.__main__ import main
from vit.commands.models import find_model, tell_assumed
from vit.weights import PACKAGED

TINY_OF_TIMM = {"image_size": 8, "patch_size": 4, "embed_dim": 12, "depth": 1, "num_heads": 2, "num_classes": 3}


def test_a_run_its_newest_checkpoint_and_a_packaged_model_have_names(finished, folder):
    last = finished / "checkpoints/last.ckpt"
    assert find_model(finished) == str(last)
    assert find_model("last") == str(last.relative_to(folder))
    assert find_model("best", "tiny") == str(last.with_name("best.ckpt").relative_to(folder))
    assert find_model(PACKAGED[0]) == PACKAGED[0]
    assert find_model(last) == str(last)


def test_what_is_assumed_of_weights_is_told(tmp_path, capsys):
    model = vit.VisionTransformer(**TINY_OF_TIMM).eval()
    vit.save(model, tmp_path / "bare.safetensors", format="timm")
    tell_assumed(vit.load(tmp_path / "bare.safetensors", num_heads=2, mlp="gelu", norm_eps=1e-6))
    said = capsys.readouterr().err
    assert said.startswith(f"note: assumed of {tmp_path / 'bare.safetensors'}: ")
    assert "pool cls" in said
    assert "mean and std" in said
    tell_assumed(model)
    tell_assumed(vit.load("cifar10"))
    assert not capsys.readouterr().err


def test_what_names_no_model_is_refused(finished, folder):
    with pytest.raises(ValueError, match=r"an experiment of several runs: name one of them, such as .*tiny/version_0"):
        find_model(finished.parent)
    last = finished / "checkpoints/last.ckpt"
    last.unlink()
    with pytest.raises(ValueError, match="is the folder of a run without a checkpoint"):
        find_model(finished)


@pytest.mark.parametrize(
    "command",
    [
        "test --ckpt_path NAME",
        "predict --ckpt_path NAME --data.root .",
        "fit --ckpt_path NAME",
        "fit --data Digits --model.init_from NAME",
        "explain photo.png --checkpoint NAME",
        "analysis --checkpoint NAME",
        "weights show NAME",
        "evaluate knn --checkpoint NAME --data.root .",
        "features . --checkpoint NAME -o rows.safetensors",
        "export NAME model.onnx",
    ],
)
def test_every_command_says_the_same_where_there_is_no_model(folder, capsys, command):
    Image.new("RGB", (8, 8)).save("photo.png")
    with pytest.raises(SystemExit) as stopped:
        main(command.replace("NAME", "gone").split())
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("error: no model at gone: name the folder of a run, a checkpoint (.ckpt)")


def test_weights_without_a_run_are_tested_and_predict(run, error_of, finished, folder):
    model = vit.load(finished / "checkpoints/last.ckpt")
    vit.save(model, "weights.safetensors")
    of_run = json.loads((finished / "results.json").read_text())
    run("test", "--ckpt_path", "weights.safetensors", "--data", "Digits", *CPU)
    (path,) = (folder / "runs/digits/evaluations").glob("*/results.json")
    assert json.loads(path.read_text())["test_accuracy"] == of_run["test_accuracy"]

    Image.new("L", (8, 8), 200).save("grey.png")
    run("predict", "--ckpt_path", "weights.safetensors", "--data.root", "grey.png", "--output", "rows.csv", *CPU)
    pixels = torch.full((1, 1, 8, 8), 200 / 255)
    mean, std = (model.pretrained_cfg[name][0] for name in ("mean", "std"))
    name = model.pretrained_cfg["class_names"][model((pixels - mean) / std).argmax()]
    assert (folder / "rows.csv").read_text().splitlines()[1].startswith(f"grey.png,{name},")

    assert "fit continues a run, and weights.safetensors is none" in error_of(
        "fit", "--ckpt_path", "weights.safetensors"
    )
    vit.save(vit.load("weights.safetensors", num_classes=0), "headless.safetensors")
    answer = error_of("test", "--ckpt_path", "headless.safetensors", "--data", "Digits")
    assert answer.startswith("error: headless.safetensors has no head (num_classes 0)")
    vit.save(vit.load("weights.safetensors", num_classes=3), "three.safetensors")
    assert "differ" in error_of("test", "--ckpt_path", "three.safetensors", "--data", "Digits")


def test_a_training_starts_from_the_folder_of_a_run(run, finished, capsys):
    module = run("fit", *TINY, "--trainer.fast_dev_run", "true", "--model.init_from", finished).model
    assert module.hparams.init_from == str(finished / "checkpoints/last.ckpt")
    assert "as they are" in capsys.readouterr().out


def test_a_folder_without_a_model_is_answered_with_what_is_in_it(finished, folder):
    (folder / "empty").mkdir()
    answers = {
        "runs": "runs is the folder of several runs: name one of them, such as runs/tiny/version_0",
        "runs/tiny": "runs/tiny is an experiment of several runs: name one of them, such as runs/tiny/version_0",
        "runs/tiny/version_0/checkpoints": "is a folder without a model: name a file in it, such as "
        "runs/tiny/version_0/checkpoints/last.ckpt",
        "empty": "empty is a folder without a model: name the folder of a run, or a file",
    }
    for name, answer in answers.items():
        with pytest.raises(ValueError, match=answer):
            find_model(name)
