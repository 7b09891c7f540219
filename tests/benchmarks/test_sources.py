"""Hashes of source files: what changes them, and what does not."""

import pytest
from sources import hash_of

CODE = '''"""What it is."""

def double(x):
    """Return twice x."""
    return 2 * x  # not 3
'''


@pytest.fixture
def hash_after(tmp_path):
    """The hash of a file of this content."""

    def hash_after(text, name="a.py"):
        (tmp_path / name).write_text(text)
        return hash_of(tmp_path, "*.py")

    return hash_after


@pytest.mark.parametrize(
    "same",
    [
        CODE.replace("# not 3", "# twice"),
        CODE.replace("Return twice x.", "Return the double."),
        CODE.replace('"""What it is."""', ""),
        CODE.replace("(x):", "(x: float) -> float:"),
        CODE.replace("2 * x", "(2 *\n        x)"),
        "import math\nfrom pathlib import Path\n" + CODE,
        CODE.replace("    return", "    from math import tau\n    return"),
        CODE + '__all__ = ["double"]\n',
    ],
    ids=["comment", "docstring", "no docstring", "annotations", "layout", "imports", "import inside", "public names"],
)
def test_what_says_the_same_has_the_same_hash(hash_after, same):
    assert same != CODE
    assert hash_after(CODE) == hash_after(same)


@pytest.mark.parametrize(
    "other",
    [CODE.replace("2 * x", "3 * x"), CODE.replace("(x)", "(x=1)"), CODE + "\nTWO: int = 2\n"],
    ids=["constant", "default", "new name"],
)
def test_what_says_something_else_has_another_hash(hash_after, other):
    assert hash_after(CODE) != hash_after(other)


def test_a_new_file_changes_the_hash_and_no_file_has_none(hash_after, tmp_path):
    assert hash_of(tmp_path, "*.py") == ""
    assert hash_after(CODE) != hash_after(CODE, "b.py")


def test_a_function_that_moves_to_another_file_changes_no_hash(hash_after, tmp_path):
    triple = "\n\ndef triple(x):\n    return 3 * x\n"
    before = hash_after(CODE + triple)
    hash_after(CODE)
    assert hash_after(triple, "b.py") == before
    assert hash_after(triple.replace("3", "4"), "b.py") != before


def test_a_file_that_is_not_python_counts_by_its_bytes(tmp_path):
    file = tmp_path / "weights.bin"
    file.write_bytes(b"\x00\x01")
    before = hash_of(tmp_path, "*.bin")
    file.write_bytes(b"\x00\x02")
    assert hash_of(tmp_path, "*.bin") != before


def test_one_function_of_a_file_has_a_hash_of_its_own(tmp_path):
    file = tmp_path / "a.py"
    file.write_text(CODE)
    before = hash_of(tmp_path, "a.py:double")
    file.write_text(CODE + "\n\ndef triple(x):\n    return 3 * x\n")
    assert before == hash_of(tmp_path, "a.py:double") != hash_of(tmp_path, "a.py:triple")
    file.write_text(CODE.replace("2 * x", "x + x"))
    assert hash_of(tmp_path, "a.py:double") not in (before, "")
    assert hash_of(tmp_path, "a.py:triple") == ""
