"""Trainings that start from trained weights: --model.init_from."""

import re
import shutil
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image

import vit
from tests.tiny import CPU, MODEL, TINY
from vit.weights.checkpoint import read_checkpoint

START = "runs/tiny/version_0/checkpoints/last.ckpt"
FINER = ["--model.patch_size", "2", "--model.init_from", START, "--experiment", "finer"]


def test_a_run_starts_from_the_weights_of_another_one_and_is_resumed_without_them(run, finished, folder, capsys):
    run("fit", *TINY, *FINER, "--model.lr", "0", "--data.val_fraction", "0.1")
    printed = capsys.readouterr().out
    assert re.search(rf"weights of {START} \(vit\): .*, resized: patch_embed.proj.weight, pos_embed\n", printed)
    tuned = folder / "runs/finer/version_0/checkpoints/last.ckpt"
    trained, started = vit.load(folder / START).state_dict(), vit.load(tuned).state_dict()
    same = {name for name in trained if trained[name].shape == started[name].shape}
    assert trained.keys() - same == {"patch_embed.proj.weight", "pos_embed"}
    assert all(torch.equal(trained[name], started[name]) for name in same)

    shutil.rmtree(finished)
    resumed = run("fit", "--ckpt_path", tuned, "--trainer.max_epochs", "3")
    assert resumed.trainer.current_epoch == 3
    run("test", "--ckpt_path", tuned)


def test_average_weights_start_from_the_file_too(run, finished, folder):
    run("fit", *TINY, *FINER, "--model.lr", "0", "--model.ema_decay", "0.9")
    tuned = vit.load(folder / "runs/finer/version_0/checkpoints/last.ckpt")
    torch.testing.assert_close(tuned.cls_token, vit.load(folder / START).cls_token)


def test_the_architecture_is_that_of_the_file_unless_it_is_typed(run, finished, folder, tmp_path):
    small = {"embed_dim": 12, "depth": 2, "num_heads": 3, "patch_size": 4, "img_size": 8, "in_chans": 1}
    theirs = timm.create_model("vit_tiny_patch16_224", **small)
    torch.save(theirs.state_dict(), tmp_path / "timm.pth")
    start = ["--model.init_from", tmp_path / "timm.pth", "--model.num_heads", "3", "--model.lr", "0"]
    few = [*CPU, "--data", "Digits", "--trainer.max_steps", "1", "--experiment", "of_timm"]
    classifier = run("fit", *few, *start, "--model.num_registers", "2").model
    assert (classifier.network.embed_dim, len(classifier.network.blocks), classifier.network.num_prefix_tokens) == (
        12,
        2,
        3,
    )
    expected = theirs.state_dict()["blocks.1.attn.qkv.weight"]
    assert torch.equal(classifier.network.blocks[1].attn.qkv.weight.detach(), expected)


def test_the_blocks_of_a_completer_are_a_start(run, finished):
    completer = Path(__file__).parents[1] / "before/completer/checkpoints/last.ckpt"
    start = ["--data", "Digits", "--model.patch_size", "4", "--model.init_from", completer, "--model.lr", "0"]
    classifier = run("fit", *CPU, *start, "--trainer.max_steps", "1", "--experiment", "of_completer").model
    expected = read_checkpoint(completer)["state_dict"]["network.decoder.blocks.0.attn.qkv.weight"]
    assert torch.equal(classifier.network.blocks[0].attn.qkv.weight.detach(), expected)


def test_a_folder_of_images_is_scaled_and_normalised_as_the_weights_take_images(run, finished, folder, tmp_path):
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(4):
            noise = torch.randint(256, (12, 12, 3), dtype=torch.uint8)
            Image.fromarray(noise.numpy()).save(tmp_path / "photos" / name / f"{index}.png")
    photos = ["--data", "ImageFolder", "--data.root", tmp_path / "photos", "--data.test_fraction", "0"]
    start = [*CPU, *photos, "--model.init_from", START, "--trainer.max_steps", "1", "--experiment", "photos"]
    data = run("fit", *start).datamodule
    assert (data.image_size, data.mean, data.std) == ((8, 8), 3 * [pytest.approx(0.305)], 3 * [pytest.approx(0.376)])
    described = vit.load(folder / "runs/photos/version_0/checkpoints/last.ckpt").pretrained_cfg
    assert (described["mean"], described["std"]) == (data.mean, data.std)

    resumed = run("fit", "--ckpt_path", "last", "--experiment", "photos", "--trainer.max_steps", "2").datamodule
    assert (resumed.image_size, resumed.mean, resumed.std) == (data.image_size, data.mean, data.std)

    typed = run("fit", *start, "--data.image_size", "12", "--data.mean", "[0.1,0.2,0.3]").datamodule
    assert (typed.image_size, typed.mean, typed.std) == ((12, 12), [0.1, 0.2, 0.3], data.std)


def test_frozen_blocks_stay_bit_for_bit_and_the_others_train(run, finished, folder):
    run(
        "fit",
        *TINY,
        "--model.init_from",
        START,
        "--model.freeze",
        "1",
        "--experiment",
        "frozen",
        "--model.drop_path",
        "0.5",
    )
    before = vit.load(folder / START).state_dict()
    after = vit.load(folder / "runs/frozen/version_0/checkpoints/last.ckpt").state_dict()
    kept = {name for name in before if torch.equal(before[name], after[name])}
    embedding = {"cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"}
    first = embedding | {name for name in before if name.startswith("blocks.0.")}
    assert first <= kept
    assert "head.weight" not in kept


def test_what_does_not_fit_is_one_line(error_of, finished):
    message = error_of("fit", *TINY, "--model.num_heads", "4", "--model.init_from", START)
    assert message == f"error: {START} holds a model with num_heads 2, and this one has num_heads 4: make them equal"


def test_a_run_is_started_or_continued_and_not_both(error_of, finished):
    message = error_of("fit", "--ckpt_path", START, "--model.init_from", START)
    assert message.startswith("error: --model.init_from starts a training and --ckpt_path continues one")


def test_a_missing_file_is_one_line(error_of, folder):
    message = error_of("fit", "--data", "Digits", *MODEL, *CPU, "--model.init_from", "no.ckpt")
    assert message.startswith("error: no model at no.ckpt")
    assert not list(folder.glob("runs/*/*/*"))
