"""The configs build, and their headers state command, parameters and measured accuracy."""

import json
import re
import statistics
import sys
from pathlib import Path

import pytest

import train
from tests.photographs import make_photographs
from tests.tiny import CPU
from vit.commands.training_cli import ViTCLI

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
for_each = pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)


def header_of(config):
    return "\n".join(re.findall("^#.*", config.read_text(), re.MULTILINE))


def results(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


@for_each
def test_it_builds_and_its_header_has_command_and_parameters(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_photographs(tmp_path / "photos", per_class=2, scale=0.05)  # what configs/photos.yaml reads
    files = [path.relative_to(tmp_path) for path in sorted((tmp_path / "photos").rglob("*.*"))]
    Path("labels.csv").write_text("\n".join(["file,label", *(f"{file},{file.parent.name};any" for file in files)]))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    header = header_of(config)
    assert f"python train.py fit --config configs/{config.name}" in header
    monkeypatch.setattr(ViTCLI, "_run_subcommand", lambda *_: None)
    alone = ["--trainer.strategy", "auto", "--trainer.devices", "1"]
    if "init_from: runs/" in config.read_text():
        alone += ["--model.init_from", "null"]  # the run of another config
    cli = train.main(["fit", "--config", str(config), *CPU, *alone])
    parameters = sum(parameter.numel() for parameter in cli.model.parameters())
    assert re.search(rf"\b{parameters:,} parameters", header), f"the model has {parameters:,} parameters"
    assert cli.trainer.gradient_clip_val == 1.0  # the default of train.py, which no config repeats


def scored(recipe):
    """The trainings whose maps were scored, with their accuracy on the images of the scores."""
    planted = [cell for cell in results("explanations").values() if "planted" in cell]
    return [cell for cell in planted if cell["recipe"] == recipe]


def fine_tuned():
    """Mean and deviation of each row of the comparison of fine-tuning with training from scratch."""
    percents = {}
    for cell in results("finetune").values():
        percents.setdefault((cell["row"], cell["count"]), []).append(100 * cell["training"]["test_accuracy"])
    return {f"{number:.1f}" for row in percents.values() for number in (statistics.mean(row), statistics.stdev(row))}


@for_each
def test_the_accuracies_in_its_header_are_those_of_the_results(config):
    header = header_of(config)
    cells = [cell for cell in results("accuracy").values() if cell["recipe"] == config.stem]
    measured = {f"{100 * cell['accuracy']:.1f}" for cell in scored(config.stem)}
    measured |= fine_tuned() if config.stem in ("finetune", "photos") else set()
    for key in ("test_accuracy", "test_accuracy_views", "val_accuracy") if cells else ():
        percents = [100 * cell[key] for cell in cells if cell.get(key) is not None] or [0.0]
        deviation = statistics.stdev(percents) if len(percents) > 1 else 0.0
        measured |= {f"{number:.2f}" for number in (*percents, statistics.mean(percents), deviation)}
    stated = set(re.findall(r"\d+(?:\.\d+)?(?= %)|\b\d\d\.\d\d\b", header))
    assert stated <= measured
    if cells:
        mean = statistics.mean(100 * cell["test_accuracy"] for cell in cells)
        assert f"{mean:.2f}" in stated, f"its mean test accuracy is {mean:.2f} %"
        assert {cell["machine"]["date"] for cell in cells} <= {*re.findall(r"\d{4}-\d\d-\d\d", header)}
