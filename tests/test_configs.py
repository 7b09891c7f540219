"""Every config is a lab record whose numbers are those of the model it builds."""

import re
import sys
from pathlib import Path

import pytest
import yaml

import train

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_it_builds_and_its_header_tells_command_and_parameters(config):
    header = "".join(line for line in config.read_text().splitlines(keepends=True) if line.startswith("#"))
    assert f"python train.py fit --config configs/{config.name}" in header
    described = yaml.safe_load(config.read_text())
    described["trainer"] |= {"accelerator": "cpu", "precision": "32-true", "strategy": "auto", "devices": 1}
    cli = train.main(described, run=False)
    parameters = sum(parameter.numel() for parameter in cli.model.vit.parameters())
    assert re.search(rf"\b{parameters:,} parameters", header), f"the model has {parameters:,} parameters"
