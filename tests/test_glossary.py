"""The glossary: it has every word that a page prints in its legends and columns, once."""

import re
from typing import get_args

import pytest

from vit.analysis.answers_page import SHOWN
from vit.analysis.head_table import Kind
from vit.explain.evaluation.findings import Level
from vit.explain.evaluation.trust import CHECKS
from vit.explain.maps import CONTROLS, METHODS
from vit.glossary import (
    ANALYSIS,
    EVERYWHERE,
    GROUPS,
    HEADS,
    MAPS,
    RUN,
    TRUST,
)
from vit.objectives import OBJECTIVES
from vit.objectives.classify.tables import AREAS, SHARES
from vit.support.words import find_word


def test_each_method_and_each_kind_of_head_has_a_sentence_and_says_when_to_take_it():
    assert [*MAPS] == [*METHODS]
    assert [*HEADS] == [*get_args(Kind)]
    assert [name for name, word in (MAPS | HEADS).items() if not word.take] == []
    assert [name for name in MAPS if name in CONTROLS and not MAPS[name].says.startswith("A control: ")] == []
    assert [name for name in MAPS if name not in CONTROLS and not MAPS[name].source] == []


def test_it_has_the_columns_of_an_analysis_and_the_checks_and_levels_of_a_trust_report():
    assert [label for label in SHOWN.values() if find_word(label, ANALYSIS, EVERYWHERE) is None] == []
    checks = {*CHECKS, *get_args(Level), "faith", "agreement", "attention", "outliers", "zero", "constant"}
    assert checks <= TRUST.keys()


def test_it_has_the_scores_of_all_objectives():
    scores = [score for objective in OBJECTIVES.values() for score in (objective.monitor, *objective.columns)]
    labels = [score.label for score in scores] + [*AREAS.values(), *SHARES.values()]
    labels += [f"Test {objective.monitor.label.lower()}" for objective in OBJECTIVES.values()]
    assert [label for label in labels if find_word(label, RUN) is None] == []


def test_a_word_of_a_group_comes_before_that_of_every_page():
    assert find_word("attention", TRUST, EVERYWHERE) is TRUST["attention"]
    assert find_word("Attention", ANALYSIS, EVERYWHERE) is EVERYWHERE["attention"]
    assert find_word("Validation accuracy", RUN) is RUN["validation accuracy"]
    assert find_word("Validation F1, %", RUN) is RUN["F1"]
    assert find_word("precision of a cat", RUN) is None


@pytest.mark.parametrize("title", GROUPS)
def test_a_meaning_is_one_plain_sentence_that_a_table_can_hold(title):
    for word in GROUPS[title].values():
        for text in filter(None, (word.says, word.source, word.take)):
            assert "|" not in text
            assert "\n" not in text
            assert not text.endswith(".")
            assert ". " not in text.replace("et al. ", "")
        assert str(word).endswith(".")
        assert not re.search(r"\b(19|20)\d\d\b", word.says + word.take)  # papers are sources
