"""Docstrings state no measured number: a file of results holds it, which is measured again and says how old it is."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Shares with decimals or under "accuracy", times, and how many times as fast or as long something is.
MEASURED = re.compile(
    r"\d\.\d+ %|accuracy of \d+|\d(\.\d+)? ms\b|\d times as (fast|long)|took \d|\d images? (per|a) second"
)
FILES = sorted([*(ROOT / "vit").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")])


def docstrings(code):
    """The docstrings of a file, without their examples."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield re.sub(r"^ *>>> .*\n.*$", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "is_measured"),
    [
        ("AdamW reaches 62.1 % here", True),
        ("takes 1.2 ms a step", True),
        ("is 3 times as fast", True),
        ("an interval of 95 %", False),
        ("removes 10 % of the patches", False),
    ],
)
def test_a_measured_number_is_told_from_a_setting(text, is_measured):
    assert bool(MEASURED.search(text)) == is_measured


def test_no_docstring_states_a_measured_number():
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in FILES
        for text in docstrings(path.read_text())
        for match in MEASURED.finditer(text)
    ]
    assert found == [], "name the file of benchmarks/results that holds it instead"
