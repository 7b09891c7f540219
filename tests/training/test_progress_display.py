"""The console says how long the rest takes, and what the model is made of."""

from types import SimpleNamespace

import pytest
import torch
from lightning import LightningModule

from vit.training.progress_display import ImagesPerSecondBar, ParameterSummary


@pytest.mark.parametrize(("progress", "left"), [(0.25, None), (0.3, "0:07:00"), (0.75, "0:00:15"), (1.0, "0:00:00")])
def test_the_bar_says_how_long_the_rest_of_the_training_takes(monkeypatch, progress, left):
    """A quarter was done before a resume, and 30 s have gone by since."""
    bar = ImagesPerSecondBar()
    bar.start, bar.done_before = 100.0, 0.25
    monkeypatch.setattr("vit.training.progress_display.time.monotonic", lambda: 130.0)
    assert bar._time_left(progress) == left


def test_the_bar_begins_with_the_progress_that_a_resumed_module_knows_at_its_first_step():
    bar, module = ImagesPerSecondBar(), SimpleNamespace(progress=0.5)
    bar.start, bar.done_before = 0.0, None
    assert bar._time_left(0.5) is None
    bar.on_train_batch_start(SimpleNamespace(), module, None, 0)
    module.progress = 0.6
    bar.on_train_batch_start(SimpleNamespace(), module, None, 1)
    assert bar.done_before == 0.5


def test_a_summary_has_the_modules_and_their_parameters_and_no_count_of_operations(capsys):
    module = LightningModule()
    module.network = torch.nn.Linear(2, 3)
    trainer = SimpleNamespace(strategy=None, is_global_zero=True)
    ParameterSummary().on_fit_start(trainer, module)
    assert capsys.readouterr().out == "  network: Linear, 9 parameters\n"
