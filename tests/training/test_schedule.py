"""The learning rate and the progress of a training."""

import math
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import Timer

from vit.training.schedule import ProgressSchedule, TrainingLength, learning_rate_factor

ALONE = SimpleNamespace(broadcast=lambda value: value)


def trainer(steps, *callbacks, epochs=1, max_steps=-1):
    return SimpleNamespace(
        estimated_stepping_batches=steps, callbacks=list(callbacks), max_epochs=epochs, max_steps=max_steps
    )


class StoppedTimer(Timer):
    """A timer at 30 seconds."""

    def time_elapsed(self, stage="train"):
        return 30.0


@pytest.mark.parametrize(
    ("decay", "factors"),
    [("cosine", [1, 0.8535534, 0.5, 0, 0]), ("linear", [1, 0.75, 0.5, 0, 0]), ("constant", [1, 1, 1, 1, 1])],
)
def test_the_rate_rises_linearly_from_zero_to_its_peak_and_decays_to_zero(decay, factors):
    rates = [learning_rate_factor(p, 0.2, decay) for p in (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 1.0, 1.3)]
    assert rates == pytest.approx([0, 0.25, 0.5, *factors])


def test_no_warm_up_starts_at_the_peak():
    assert learning_rate_factor(0.0, 0.0, "linear") == 1.0


@pytest.mark.parametrize(
    ("steps", "step", "share"), [(10, 0, 0.0), (10, 3, 0.3), (10, 12, 1.0), (1, 1, 1.0), (math.inf, 12, 0.0)]
)
def test_progress_is_the_share_of_the_steps(steps, step, share):
    assert TrainingLength(trainer(steps)).progress(step, ALONE) == pytest.approx(share)


def test_progress_is_the_share_of_the_steps_or_of_the_time_whichever_is_larger():
    timer = StoppedTimer(timedelta(seconds=40))
    assert TrainingLength(trainer(math.inf, timer)).progress(5, ALONE) == 0.75
    assert TrainingLength(trainer(10, timer)).progress(5, ALONE) == 0.75
    assert TrainingLength(trainer(10, timer)).progress(9, ALONE) == 0.9
    first_process = SimpleNamespace(broadcast=lambda value: 20.0)  # its time is that of all
    assert TrainingLength(trainer(math.inf, timer)).progress(5, first_process) == 0.5


@pytest.mark.parametrize(("steps", "first", "last"), [(80, 40, 80), (40, 20, 40), (160, 80, 160)])
def test_half_of_the_epochs_are_half_of_a_training_that_goes_on_in_batches_of_another_size(steps, first, last):
    before = TrainingLength(trainer(80, epochs=4)).state_dict()
    length = TrainingLength(trainer(steps, epochs=4))
    length.continue_from(before, 40)
    assert length.progress(40, ALONE) == 0.5
    assert length.progress(40 + last - first, ALONE) == 1.0
    again = TrainingLength(trainer(80, epochs=4))
    again.continue_from(length.state_dict(), 40)
    assert (again.shift, again.progress(60, ALONE)) == (0, 0.75)


def test_steps_are_the_progress_of_a_training_of_so_many():
    length = TrainingLength(trainer(100, epochs=4, max_steps=100))
    length.continue_from(TrainingLength(trainer(80, epochs=4)).state_dict(), 40)
    assert length.progress(40, ALONE) == 0.4


def test_a_timer_without_a_limit_and_an_unknown_number_of_steps_are_no_end():
    for length in (TrainingLength(trainer(math.inf, StoppedTimer())), TrainingLength(trainer(-1))):
        assert not length.has_end
        assert length.progress(7, ALONE) == 0.0
    assert TrainingLength(trainer(10)).has_end
    assert TrainingLength(trainer(math.inf, StoppedTimer(timedelta(seconds=40)))).has_end


def test_a_schedule_takes_the_settings_of_now_after_a_resume_and_scales_its_groups_with_a_changed_rate():
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    groups = [
        {"params": [weight], "lr": rate, "weight_decay": 0.1} for weight, rate in zip(weights, (0.4, 0.2), strict=True)
    ]
    optimizer = torch.optim.AdamW(groups)
    schedule = ProgressSchedule(optimizer, lambda step: 0.5, lr=0.4)
    assert [group["lr"] for group in optimizer.param_groups] == [0.4, 0.2]  # that an own schedule may start from
    assert not {"lr", "settings"} & schedule.state_dict().keys()
    optimizer.param_groups[0].update(weight_decay=9.0, lr=9.0, initial_lr=9.0)  # as of a checkpoint
    schedule.restore_settings(0.4)
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.2, 0.1), (0.1, 0.1)]
    schedule.restore_settings(0.8)
    assert [group["lr"] for group in optimizer.param_groups] == [0.4, 0.2]
    assert schedule.base_lrs == [0.8, 0.4]
