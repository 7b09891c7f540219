"""Trainings that start from trained weights: --model.init_from."""

import shutil

import pytest
import torch

import vit
from tests.training.tiny import CPU, MODEL, TINY

pytestmark = pytest.mark.usefixtures("no_pictures")

START = "runs/tiny/version_0/checkpoints/last.ckpt"
FINER = ["--model.patch_size", "2", "--model.init_from", START, "--experiment", "finer"]


def test_a_run_starts_from_the_weights_of_another_one_and_is_resumed_without_them(run, finished, folder, capsys):
    run("fit", *TINY, *FINER, "--model.lr", "0", "--data.val_fraction", "0.1")
    assert f"weights of {START}, resized: patch_embed.proj.weight, pos_embed\n" in capsys.readouterr().out
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


def test_what_does_not_fit_is_one_line(error_of, finished):
    message = error_of("fit", *TINY, "--model.num_heads", "4", "--model.init_from", START)
    assert message == f"error: {START} holds a model with num_heads 2, and this one has num_heads 4: make them equal"


def test_a_run_is_started_or_continued_and_not_both(error_of, finished):
    message = error_of("fit", "--ckpt_path", START, "--model.init_from", START)
    assert message.startswith("error: --model.init_from starts a training and --ckpt_path continues one")


def test_a_missing_file_is_one_line(error_of, folder):
    message = error_of("fit", "--data", "Digits", *MODEL, *CPU, "--model.init_from", "no.ckpt")
    assert message.startswith("error: no checkpoint at no.ckpt")
    assert not list(folder.glob("runs/*/*/*"))
