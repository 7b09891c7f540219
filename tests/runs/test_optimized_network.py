"""Evaluations that compute by an optimised program."""

import copy
import csv
import json
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from tests.tiny import CPU
from vit.runs.optimized_network import OptimizedNetwork

needs_openvino = pytest.mark.skipif(not find_spec("openvino"), reason="openvino is not installed")


class Reversed(torch.nn.Module):
    """A program that differs from its network: it prefers what the network likes least."""

    def __init__(self, network: torch.nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.dtype = copy.deepcopy(network), dtype

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return -self.network(images)

    def extra_repr(self) -> str:
        return f"reversed in {self.dtype}"


@pytest.fixture
def reversing(monkeypatch):
    monkeypatch.setattr("vit.runs.optimized_network.optimize", Reversed)


@pytest.mark.parametrize(("command", "name"), [("test", "test_accuracy"), ("validate", "val_accuracy")])
@pytest.mark.usefixtures("reversing")
def test_a_program_computes_all_logits_of_an_evaluation_on_request(run, finished, command, name, capsys):
    before = json.loads((finished / "results.json").read_text())[name]
    cli = run(command, "--ckpt_path", finished / "checkpoints/last.ckpt", *CPU, "--optimize", "bfloat16")
    record = json.loads((finished / f"evaluations/{command}_last_0/results.json").read_text())
    assert record["optimize"] == "bfloat16"
    assert record[name] != before
    assert "optimised: reversed in torch.bfloat16\n" in capsys.readouterr().out
    assert "forward" not in vars(cli.model.network)  # pictures see the layers of the network


@pytest.mark.usefixtures("reversing")
def test_a_program_computes_predictions_on_request(run, finished, folder):
    (folder / "photos").mkdir()
    Image.effect_noise((8, 8), 90).save(folder / "photos/a.png")
    words = ["predict", "--ckpt_path", finished / "checkpoints/last.ckpt", "--data.root", "photos", "--output"]
    run(*words, "model.csv")
    run(*words, "program.csv", "--optimize", "float32")
    tables = ((folder / f"{name}.csv").read_text().splitlines() for name in ("model", "program"))
    by_model, by_program = (next(csv.DictReader(lines)) for lines in tables)
    assert by_program["class"] not in [part.split()[0] for part in by_model["top5"].split("; ")]


@pytest.mark.parametrize(
    ("device", "precision", "message"),
    [
        ("cuda", "bf16-mixed", "^--optimize computes on a CPU, and this is cuda: add --trainer.accelerator cpu$"),
        ("cpu", "bf16-true", "^--optimize takes weights of float32, .* is bf16-true: add --trainer.precision 32-true$"),
    ],
)
def test_weights_of_which_no_program_is_made_are_refused_with_the_option_to_type(device, precision, message):
    strategy = SimpleNamespace(root_device=torch.device(device))
    with pytest.raises(ValueError, match=message):
        OptimizedNetwork("float32").setup(SimpleNamespace(strategy=strategy, precision=precision), None, "test")


@needs_openvino
def test_a_test_by_a_real_program_gives_the_number_of_the_training(run, finished):
    before = json.loads((finished / "results.json").read_text())
    run("test", "--ckpt_path", finished / "checkpoints/last.ckpt", *CPU, "--optimize", "float32")
    record = json.loads((finished / "evaluations/test_last_0/results.json").read_text())
    assert record["test_accuracy"] == pytest.approx(before["test_accuracy"])
