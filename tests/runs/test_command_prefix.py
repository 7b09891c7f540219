"""The name of the program in the commands that it prints."""

import pytest

from vit.runs.command_prefix import command_prefix


@pytest.mark.parametrize(
    ("started", "typed"),
    [
        ("train.py", "python train.py"),
        ("/home/me/vit/train.py", "python train.py"),
        ("/usr/bin/vit-attention", "vit-attention"),
        ("/usr/lib/python3/vit/__main__.py", "vit-attention"),
    ],
)
def test_a_printed_command_begins_as_the_one_that_was_typed(monkeypatch, started, typed):
    monkeypatch.setattr("sys.argv", [started, "fit"])
    assert command_prefix() == typed
