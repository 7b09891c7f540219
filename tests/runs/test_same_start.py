"""Processes that found different checkpoints do not train together."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from vit.runs.same_start import SameStart

OLD, NEW = Path("version_0/checkpoints/last.ckpt"), Path("version_1/checkpoints/last.ckpt")


def processes(*found):
    """Return what each of the processes does with what it found: None, or the message of an error."""
    same = [each == found[0] for each in found]
    strategy = SimpleNamespace(
        broadcast=lambda _: found[0], reduce_boolean_decision=lambda mine, all: all and min(same)
    )
    ended = []
    for each in found:
        try:
            SameStart(each).setup(SimpleNamespace(strategy=strategy), None, "fit")
            ended.append(None)
        except ValueError as error:
            ended.append(str(error))
    return ended


@pytest.mark.parametrize("found", [(NEW, NEW, NEW), (None, None)])
def test_processes_that_found_the_same_go_on(found):
    assert not any(processes(*found))


@pytest.mark.parametrize("found", [(NEW, NEW, OLD), (None, OLD), (NEW, None)])
def test_all_processes_end_if_one_found_another(found):
    line = f"the first process goes on from {found[0]}, another one does not see that: start again"
    assert processes(*found) == [line] * len(found)
