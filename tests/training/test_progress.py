"""How much of a training is done, by what ends it."""

import math
from datetime import timedelta
from types import SimpleNamespace

import pytest
from lightning.pytorch.callbacks import Timer

from vit.training.progress import Progress

ALONE = SimpleNamespace(broadcast=lambda value: value)


def trainer(steps, *callbacks):
    return SimpleNamespace(estimated_stepping_batches=steps, callbacks=list(callbacks))


class StoppedTimer(Timer):
    """A timer of which 30 seconds are over."""

    def time_elapsed(self, stage="train"):
        return 30.0


@pytest.mark.parametrize(("steps", "after", "share"), [(10, 0, 0.0), (10, 3, 0.3), (10, 12, 1.0), (math.inf, 12, 0.0)])
def test_it_goes_by_steps(steps, after, share):
    assert Progress(trainer(steps)).after(after, ALONE) == pytest.approx(share)


def test_it_goes_by_steps_or_time_whichever_is_further():
    timer = StoppedTimer(timedelta(seconds=40))
    assert Progress(trainer(math.inf, timer)).after(5, ALONE) == 0.75
    assert Progress(trainer(10, timer)).after(5, ALONE) == 0.75
    assert Progress(trainer(10, timer)).after(9, ALONE) == 0.9


def test_all_processes_go_by_the_time_of_one():
    first = SimpleNamespace(broadcast=lambda value: 20.0)
    assert Progress(trainer(math.inf, StoppedTimer(timedelta(seconds=40)))).after(5, first) == 0.5


def test_a_timer_without_a_limit_and_an_unknown_number_of_steps_are_no_end():
    for progress in (Progress(), Progress(trainer(math.inf, StoppedTimer())), Progress(trainer(-1))):
        assert not progress.has_end
        assert progress.after(7, ALONE) == 0.0
    assert Progress(trainer(10)).has_end
    assert Progress(trainer(math.inf, StoppedTimer(timedelta(seconds=40)))).has_end
