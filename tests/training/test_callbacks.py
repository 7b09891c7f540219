"""The order of the callbacks of a run."""

from pathlib import Path

import pytest
from lightning import Callback

from vit.training.callbacks import in_order
from vit.training.checkpoints import RunCheckpoint
from vit.training.pictures import RunPictures
from vit.training.record import RunRecord
from vit.training.seeded_steps import SeededSteps
from vit.training.stop_at_nan import StopAtNaN


def test_the_order_does_not_depend_on_how_the_callbacks_are_listed():
    record = RunRecord(Path("run"), {}, "", {})
    best, last = RunCheckpoint(Path("run"), "best", monitor="val_accuracy"), RunCheckpoint(Path("run"), "last")
    seeded, stop, pictures = SeededSteps(0), StopAtNaN(), RunPictures(record)
    assert in_order([best, record, pictures, last, stop, seeded]) == [seeded, stop, pictures, record, best, last]


def test_a_callback_without_a_place_in_the_order_is_refused():
    with pytest.raises(ValueError, match="not in tuple"):
        in_order([Callback()])
