"""The experiments about sentences of the literature, at a size that takes a second, and their answers."""

import json

import claims
import claims_norms
import claims_reach
import pytest
import records
from claims_training import FAILS, HOLDS, OPEN, difference

TINY = {"reach": (claims_reach, "softmax, depth 2"), "norms": (claims_norms, "pre, no residual, depth 2, warm-up")}


@pytest.fixture
def tiny(monkeypatch):
    for module, _ in TINY.values():
        monkeypatch.setattr(module, "STEPS", 2)
    monkeypatch.setattr(records, "commit", lambda: "abc1234")


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_each_cell_is_written_once_and_a_second_call_measures_what_is_missing(name, tiny, tmp_path, capsys):
    _, setting = TINY[name]
    asked = [name, "--settings", setting, "--output", str(tmp_path)]
    claims.main([*asked, "--seeds", "5"])
    path = tmp_path / f"claims_{name}.json"
    first = json.loads(path.read_text())
    (cell,) = first.values()
    assert (cell["setting"], cell["seed"], cell["commit"]) == (setting, 5, "abc1234")
    assert cell["command"] == f"python benchmarks/claims.py {name}"
    assert cell["machine"]["threads"] == 1
    claims.main([*asked, "--seeds", "5", "6"])
    both = json.loads(path.read_text())
    assert list(both) == [f"{setting}, seed 5", f"{setting}, seed 6"]
    assert both[f"{setting}, seed 5"] == cell
    assert "measured before, at commit abc1234" in capsys.readouterr().err
    assert setting.split(",")[0] in path.with_suffix(".md").read_text()


def test_no_cell_is_begun_after_the_minutes(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(claims.time, "monotonic", iter([0.0, 61.0]).__next__)
    claims.main(["reach", "--minutes", "1", "--output", str(tmp_path)])
    assert "softmax, depth 4, seed 0 and what follows it is left for the next call" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["reach", "--settings", "softmax"], "unknown setting 'softmax': choose of 'softmax, depth 4'"),
        (["reach", "--minutes", "0"], "--minutes (0.0) must be a number above 0"),
        (["speed"], "invalid choice: 'speed'"),
    ],
)
def test_what_is_not_there_is_one_line(arguments, error, capsys):
    with pytest.raises(SystemExit) as end:
        claims.main(arguments)
    assert end.value.code == 2
    assert error in capsys.readouterr().err


def reached(softmax, convolution, near=0.9):
    """Cells of seeds whose accuracy is the same at all distances, but for marks that are near for a convolution."""
    of_settings = {
        "softmax, depth 4": softmax,
        "convolution, depth 4": convolution,
        "uniform, depth 4": [0.5, 0.5, 0.5],
        "convolution, depth 8": [0.7, 0.7, 0.7],
    }
    return {
        f"{setting}, seed {seed}": {
            "setting": setting,
            "accuracy": {str(r): near if r < 5 and setting == "convolution, depth 4" else value for r in range(1, 16)},
        }
        for setting, values in of_settings.items()
        for seed, value in enumerate(values)
    }


@pytest.mark.parametrize(
    ("softmax", "convolution", "answer"),
    [
        ([0.98, 0.99, 0.97], [0.50, 0.51, 0.49], HOLDS),
        ([0.50, 0.51, 0.49], [0.98, 0.99, 0.97], FAILS),
        ([0.98, 0.50, 0.51], [0.50, 0.51, 0.49], OPEN),
        ([0.98], [0.50, 0.51, 0.49], OPEN),
    ],
)
def test_the_answer_is_that_of_the_interval_over_seeds(softmax, convolution, answer):
    (row,) = claims_reach.rows(reached(softmax, convolution))
    assert row["answer"] == answer
    assert "uniform attention: 50.0 ± 0.0 %" in row["control"]


def test_a_convolution_that_learns_no_short_distance_either_gives_no_answer():
    (row,) = claims_reach.rows(reached([0.98, 0.99, 0.97], [0.50, 0.51, 0.49], near=0.5))
    assert row["answer"] == OPEN
    assert "4 of them on marks 1 to 4 apart: 50.0" in row["control"]


def test_a_sentence_without_all_its_numbers_has_no_row():
    assert claims_reach.rows(reached([], [0.5, 0.5])) == []
    assert claims_norms.rows({}) == []


def wired(**accuracies):
    """Cells of three seeds at depth 12, by wiring; the others have 50 %."""
    return {
        f"{setting}, seed {seed}": {"setting": setting, "accuracy": accuracies.get(setting, 0.5) + 0.001 * seed}
        for setting in claims_norms.SETTINGS
        for seed in range(3)
    }


def test_residual_connections_and_norms_are_two_sentences():
    residual, norms = claims_norms.rows(wired(**{"pre, depth 12, warm-up": 0.9, "pre, depth 12": 0.9}))
    assert (residual["answer"], norms["answer"]) == (HOLDS, OPEN)
    assert "+40.0 points" in residual["measured"]
    _, norms = claims_norms.rows(wired(**{"post, depth 12, warm-up": 0.9}))
    assert norms["answer"] == HOLDS
    _, norms = claims_norms.rows(wired(**{"post, depth 12": 0.9}))
    assert norms["answer"] == FAILS


def test_a_difference_without_spread_is_itself():
    assert difference([0.5, 0.5], [0.25, 0.25]) == (0.25, 0.25, 0.25)
