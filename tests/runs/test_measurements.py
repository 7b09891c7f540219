"""Clocks and counts of a training."""

import time

from vit.runs.measurements import Measurements


def test_the_speed_is_that_of_the_batches_without_pauses_and_the_seconds_are_those_of_all(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    measurements = Measurements()
    measurements.start_clocks()
    clock[0] += 2
    measurements.count_batch(images=30, flop_per_image=7)
    clock[0] += 50  # a validation
    measurements.skip_pause()
    clock[0] += 3
    measurements.count_batch(images=20, flop_per_image=5)
    measurements.update_seconds()
    clock[0] += 1
    measurements.update_seconds()
    assert measurements.measured == {"seconds": 56.0, "training_seconds": 5.0, "images": 50, "flop": 310}
    assert measurements.images_per_second == 10


def test_the_last_step_is_that_of_the_last_point():
    measurements = Measurements()
    assert measurements.last_step("val") is None
    measurements.history["val"] += [{"step": 3}, {"step": 9}]
    assert measurements.last_step("val") == 9


def test_a_run_that_fails_before_its_training_starts_takes_no_time():
    measurements = Measurements()
    measurements.update_seconds()
    assert measurements.measured["seconds"] == 0.0
