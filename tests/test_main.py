"""One door for all commands: python -m vit NAME."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import vit
from vit.__main__ import COMMANDS, main, overview

ROOT = Path(vit.__file__).parents[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_help(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert "usage:" in capsys.readouterr().out


def test_the_overview_names_each_command_with_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert printed.strip() == overview()
    for name, command in COMMANDS.items():
        assert f"  {name}" in printed
        assert command.example.startswith(f"{name} ")
        assert f"vit-attention {command.example}" in printed


def test_an_unknown_command_is_one_line(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("error: no command 'train'")
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2


def test_arguments_reach_the_command(capsys):
    main(["weights", "show", "cifar10"])
    assert "weights of cifar10 (vit)" in capsys.readouterr().out


def test_the_package_is_a_command_of_python():
    found = subprocess.run([sys.executable, "-m", "vit", "weights", "show", "cifar10"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "VisionTransformer(" in found.stdout


def test_the_version_is_told_with_those_of_python_and_torch(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"vit-attention {vit.__version__} (Python 3.")


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.extra])
def test_without_its_extra_a_command_says_in_one_line_what_installs_it(name, capsys, monkeypatch):
    def run(typed):
        raise ModuleNotFoundError("No module named 'lightning'", name="lightning")

    monkeypatch.setattr(importlib, "import_module", lambda module: SimpleNamespace(main=run))
    with pytest.raises(SystemExit) as stop:
        main([name])
    assert stop.value.code == 2
    extra = COMMANDS[name].extra
    expected = f"error: {name} needs lightning, which is not installed: pip install 'vit-attention[{extra}]'\n"
    assert capsys.readouterr().err == expected


def test_a_module_of_the_package_that_is_missing_is_a_bug_and_not_an_extra(monkeypatch):
    monkeypatch.setitem(COMMANDS, "fit", COMMANDS["fit"]._replace(place="vit.commands.nothing:main"))
    with pytest.raises(ModuleNotFoundError):
        main(["fit"])


def test_every_extra_that_a_command_names_is_one_of_the_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {command.extra for command in COMMANDS.values()} - {None} <= extras.keys()
