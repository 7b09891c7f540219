"""The sweeps of docs/sweeps.md: a loop in Python, and Optuna, which prunes by the monitor."""

import re
from pathlib import Path

import pytest

import vit

PAGE = Path(vit.__file__).parents[1] / "docs" / "sweeps.md"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # Lightning's advice


@pytest.mark.slow
def test_optuna_finds_settings_and_ends_trainings_that_are_worse_than_the_others():
    optuna = pytest.importorskip("optuna", reason="docs/sweeps.md is not tested: pip install optuna optuna-integration")
    pytest.importorskip("optuna_integration", reason="docs/sweeps.md is not tested: pip install optuna-integration")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    loop, by_optuna = (
        re.search(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1] for kind in ("python", "py")
    )
    names: dict = {}
    exec(loop.partition("scores = ")[0] + by_optuna, names)
    study = names["study"]
    pruned, complete = (
        [trial for trial in study.trials if trial.state == state]
        for state in (optuna.trial.TrialState.PRUNED, optuna.trial.TrialState.COMPLETE)
    )
    assert len(pruned) + len(complete) == 10
    assert pruned
    assert all(len(trial.intermediate_values) < 3 for trial in pruned)
    assert all(len(trial.intermediate_values) == 3 for trial in complete)
    assert study.best_value == max(trial.value for trial in complete) > 0.3
