"""What all commands but those of a training share."""

import argparse

from vit.commands import parser
from vit.commands.parser import run


def test_a_command_keeps_the_memory_that_it_frees(monkeypatch):
    order = []
    monkeypatch.setattr(parser, "keep_freed_memory", lambda: order.append("kept"))
    run(argparse.ArgumentParser(), [], lambda _: order.append("ran"))
    assert order == ["kept", "ran"]
