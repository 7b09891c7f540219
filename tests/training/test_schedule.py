"""The learning rate and the progress of a training."""

import math
from datetime import timedelta
from types import SimpleNamespace

import pytest
from lightning.pytorch.callbacks import Timer

from vit.training.schedule import TrainingLength, learning_rate_factor

ALONE = SimpleNamespace(broadcast=lambda value: value)


def trainer(steps, *callbacks):
    return SimpleNamespace(estimated_stepping_batches=steps, callbacks=list(callbacks))


class StoppedTimer(Timer):
    """A timer at 30 seconds."""

    def time_elapsed(self, stage="train"):
        return 30.0


def test_the_rate_rises_linearly_from_zero_over_the_warm_up():
    assert [learning_rate_factor(p, 0.5, "cosine") for p in (0.0, 0.125, 0.25)] == [0.0, 0.25, 0.5]


@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_the_rate_is_at_its_peak_after_the_warm_up_and_zero_at_the_end_and_beyond(decay):
    assert learning_rate_factor(0.2, 0.2, decay) == 1.0
    assert learning_rate_factor(1.0, 0.2, decay) == pytest.approx(0.0)
    assert learning_rate_factor(1.3, 0.2, decay) == pytest.approx(0.0)


def test_half_way_down_a_cosine_and_a_line_are_at_one_half_but_a_quarter_down_they_differ():
    assert learning_rate_factor(0.6, 0.2, "cosine") == pytest.approx(0.5)
    assert learning_rate_factor(0.6, 0.2, "linear") == pytest.approx(0.5)
    assert learning_rate_factor(0.4, 0.2, "cosine") == pytest.approx(0.8535534)
    assert learning_rate_factor(0.4, 0.2, "linear") == pytest.approx(0.75)


def test_a_constant_rate_stays_at_its_peak():
    assert learning_rate_factor(0.99, 0.2, "constant") == 1.0


def test_no_warm_up_starts_at_the_peak():
    assert learning_rate_factor(0.0, 0.0, "linear") == 1.0


@pytest.mark.parametrize(("steps", "step", "share"), [(10, 0, 0.0), (10, 3, 0.3), (10, 12, 1.0), (math.inf, 12, 0.0)])
def test_progress_is_the_share_of_the_steps(steps, step, share):
    assert TrainingLength(trainer(steps)).progress(step, ALONE) == pytest.approx(share)


def test_progress_is_the_share_of_the_steps_or_of_the_time_whichever_is_larger():
    timer = StoppedTimer(timedelta(seconds=40))
    assert TrainingLength(trainer(math.inf, timer)).progress(5, ALONE) == 0.75
    assert TrainingLength(trainer(10, timer)).progress(5, ALONE) == 0.75
    assert TrainingLength(trainer(10, timer)).progress(9, ALONE) == 0.9


def test_all_processes_use_the_time_of_the_first():
    first = SimpleNamespace(broadcast=lambda value: 20.0)
    assert TrainingLength(trainer(math.inf, StoppedTimer(timedelta(seconds=40)))).progress(5, first) == 0.5


def test_a_timer_without_a_limit_and_an_unknown_number_of_steps_are_no_end():
    for length in (TrainingLength(trainer(math.inf, StoppedTimer())), TrainingLength(trainer(-1))):
        assert not length.has_end
        assert length.progress(7, ALONE) == 0.0
    assert TrainingLength(trainer(10)).has_end
    assert TrainingLength(trainer(math.inf, StoppedTimer(timedelta(seconds=40)))).has_end
