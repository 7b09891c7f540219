"""One door for all commands: python -m vit NAME."""

import subprocess
import sys

import pytest

from vit.__main__ import COMMANDS, main, overview


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
        assert command.example.startswith(f"vit {name} ")
        assert command.example in printed


def test_an_unknown_command_is_one_line(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("error: no command 'train': choose one of fit, validate, test")
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2


def test_arguments_reach_the_command(capsys):
    main(["weights", "show", "cifar10"])
    assert "weights of cifar10 (vit)" in capsys.readouterr().out


@pytest.mark.slow
def test_the_package_is_a_command_of_python():
    found = subprocess.run([sys.executable, "-m", "vit", "weights", "show", "cifar10"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "VisionTransformer(" in found.stdout
