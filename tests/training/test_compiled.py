"""The compiled training step: the same training, and what happens where it cannot be compiled."""

import csv
import json
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from tests.tiny import TINY
from vit.capture import capture_attention
from vit.objectives import ViTClassifier
from vit.training import compiled
from vit.training.compiled import CompiledLoss, cpp_compiler
from vit.weights import load

STEP = [*TINY, "--model.compile", "true", "--trainer.limit_test_batches", "0", "--model.dropout", "0.1"]
DROPS = ["--model.patch_drop", "0.5", "--model.patch_drop_until", "0.5", "--model.ema_decay", "0.9"]


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that were compiled, by a compiler that runs them as they are: that takes no C++."""
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph.forward

    torch.compiler.reset()
    monkeypatch.setattr("vit.training.base.CompiledLoss", lambda: CompiledLoss(backend))
    return seen


def weights(experiment):
    path = f"runs/{experiment}/version_0/checkpoints/last.ckpt"
    return torch.load(path, weights_only=True)["state_dict"]


@pytest.mark.slow
def test_each_kind_of_step_is_compiled_once_and_trains_as_it_does_eagerly(run, graphs, capsys):
    run("fit", *STEP, *DROPS, "--experiment", "compiled")
    assert len(graphs) == 2
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("compiled")]
    assert [line.split(" in ")[0] for line in said] == [
        "compiled a training step for 100 images, 50% of the patches dropped",
        "compiled a training step for 100 images, every patch",
    ]
    run("fit", *STEP, *DROPS, "--experiment", "eager", "--model.compile", "false")
    assert weights("compiled").keys() == weights("eager").keys()
    assert_close(weights("compiled"), weights("eager"))
    results = [json.loads(Path(f"runs/{name}/version_0/results.json").read_text()) for name in ("compiled", "eager")]
    assert results[0]["compile_seconds"] >= 0
    assert "compile_seconds" not in results[1]


@pytest.mark.slow
def test_a_resumed_training_ends_with_the_same_bits_and_is_explained(graphs, whole_and_resumed):
    ends = whole_and_resumed(ViTClassifier, *STEP, *DROPS)
    assert_close(*ends, rtol=0, atol=0)
    model = load("runs/resumed/version_0/checkpoints/last.ckpt")
    assert len(capture_attention(model, torch.rand(2, 1, 8, 8))) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--model.freeze", "1"],
        ["--trainer.accumulate_grad_batches", "2"],
        ["--data.mixup", "0.5", "--data.mix_until", "0.5"],
        ["--model.grad_checkpointing", "true"],
    ],
)
def test_compiled_steps_train_with(options, run, graphs):
    run("fit", *STEP, *options, "--experiment", "compiled", "--trainer.max_epochs", "1")
    run("fit", *STEP, *options, "--experiment", "eager", "--trainer.max_epochs", "1", "--model.compile", "false")
    assert graphs
    assert_close(weights("compiled"), weights("eager"))


@pytest.mark.slow
def test_without_a_compiler_it_trains_eagerly_and_says_so(run, monkeypatch, capsys):
    monkeypatch.setattr(compiled, "cpp_compiler", lambda: None)
    run("fit", *STEP, "--trainer.max_steps", "2")
    assert capsys.readouterr().out.count("no C++ compiler was found") == 1


@pytest.mark.slow
def test_a_failed_compilation_is_one_line_and_the_training_goes_on(run, monkeypatch, capsys):
    def broken(graph, inputs):
        raise RuntimeError("Python.h: no such file\nmore")

    torch.compiler.reset()
    monkeypatch.setattr("vit.training.base.CompiledLoss", lambda: CompiledLoss(broken))
    cli = run("fit", *STEP, "--trainer.max_steps", "3")
    out = capsys.readouterr().out
    assert out.count("torch.compile failed (") == 1
    assert "the training goes on without it" in out
    assert cli.trainer.global_step == 3


def test_the_compiler_is_the_one_that_cxx_names(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert cpp_compiler() is None
    compiler = tmp_path / "c++"
    compiler.write_text("")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert cpp_compiler() == str(compiler)


@pytest.mark.long
@pytest.mark.skipif(cpp_compiler() is None, reason="there is no C++ compiler")
def test_the_losses_of_five_compiled_steps_are_those_of_eager_steps(run):
    losses = []
    for name, compile in (("compiled", "true"), ("eager", "false")):
        torch.compiler.reset()
        run(
            *("fit", *STEP, "--experiment", name, "--model.compile", compile, "--model.patch_drop", "0.5"),
            *("--trainer.max_steps", "5", "--trainer.log_every_n_steps", "1"),
        )
        with Path(f"runs/{name}/version_0/metrics.csv").open(newline="") as file:
            losses.append([float(row["train_loss"]) for row in csv.DictReader(file) if row["train_loss"]])
    assert len(losses[0]) == 5
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
