"""The warning about a training that diverged."""

import json

import pytest

from tests.tiny import TINY
from vit.runs.divergence import describe_divergence


@pytest.mark.parametrize(
    ("losses", "evaluated"),
    [
        ([2.3, 1.1, 0.4], 0.5),
        ([2.3, 2.31], 2.31),  # nothing was learned
        ([0.01, 0.2], 0.3),  # weights that were good at once
        ([2.3, 0.001], 9.0),  # overfitted
        ([], 9.0),  # few steps
    ],
)
def test_of_a_training_that_is_usual_nothing_is_said(losses, evaluated):
    assert describe_divergence([{"loss": loss} for loss in losses], evaluated, num_classes=10) is None


@pytest.mark.parametrize(
    ("losses", "evaluated", "said"),
    [
        ([2.3, 3.6], 2.3, "the last training loss is 3.6, and it began at about 2.3; try a lower --model.lr"),
        ([2.3], 24.0, "the last evaluation loss is 24, and"),
        ([], 24.0, "the last evaluation loss is 24, and it began at about 2.3;"),
        ([2.3], float("nan"), "the last evaluation loss is nan, and"),
    ],
)
def test_a_loss_far_above_that_of_the_first_steps_is_said(losses, evaluated, said):
    assert said in describe_divergence([{"loss": loss} for loss in losses], evaluated, num_classes=10)


def test_of_few_steps_without_classes_the_beginning_is_unknown():
    assert describe_divergence([], 900.0, num_classes=0) is None


def test_a_run_of_one_step_that_is_much_too_large_ends_with_a_warning_and_others_do_not(run, finished, folder, capsys):
    assert "diverged" not in json.loads((finished / "results.json").read_text())
    capsys.readouterr()
    run("fit", *TINY, "--trainer.max_steps", "1", "--model.lr", "1e10", "--model.warmup", "0", "--experiment", "far")
    assert "\nwarning: the training diverged: the last evaluation loss is " in capsys.readouterr().out
    assert "diverged" in json.loads((folder / "runs/far/version_0/results.json").read_text())
