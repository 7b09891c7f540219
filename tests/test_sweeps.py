"""The sweeps of docs/sweeps.md: a loop in Python, and Optuna, which prunes by the monitor."""

import re
from pathlib import Path

import pytest

import vit

PAGE = Path(vit.__file__).parents[1] / "docs" / "sweeps.md"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # Lightning's advice


def test_optuna_finds_settings_and_ends_trainings_that_are_worse_than_the_others():
    optuna = pytest.importorskip("optuna", reason="docs/sweeps.md is not tested: pip install optuna optuna-integration")
    pytest.importorskip("optuna_integration", reason="docs/sweeps.md is not tested: pip install optuna-integration")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    page = PAGE.read_text(encoding="utf-8")
    (loop,) = re.findall(r"```python\n(from lightning .*?)scores = ", page, re.DOTALL)
    (by_optuna,) = re.findall(r"```python\n(import optuna.*?)```", page, re.DOTALL)
    names: dict = {}
    exec(loop + by_optuna, names)
    study = names["study"]
    epochs = {"COMPLETE": [], "PRUNED": []}
    for trial in study.trials:
        epochs[trial.state.name].append(len(trial.intermediate_values))
    assert len(epochs["COMPLETE"]) + len(epochs["PRUNED"]) == 10
    assert {*epochs["COMPLETE"]} == {3}
    assert min(epochs["PRUNED"]) < 3
    assert study.best_value > 0.2  # three epochs of small models; chance is 0.1
