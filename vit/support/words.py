"""Words that a page explains, each with one plain sentence, and the labels that they are found by."""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

UNIT = re.compile(r", (%|px)$")
SPLIT = re.compile(r"^(test|validation) | over views$")  # of a score


@dataclass(frozen=True)
class Word:
    """A word that a page prints.

    Attributes:
        says: What it means, in one sentence.
        source: The paper or the equation.
        take: When to take it, or what it is good for.
    """

    says: str
    source: str = ""
    take: str = ""

    def __str__(self) -> str:
        source = f" ({self.source})" if self.source else ""
        return f"{self.says}{source}." + (f" {self.take}." if self.take else "")


def find_word(label: str, *groups: Mapping[str, Word]) -> Word | None:
    """Return the word of a label, with or without a unit, from the first group that has it.

    >>> find_word("Test speed, %", {"speed": Word("Images in a second")}).says
    'Images in a second'
    >>> find_word("tabby cat", {}) is None
    True
    """
    name = UNIT.sub("", label)
    small = name[:1].lower() + name[1:]
    spellings = (name, small, SPLIT.sub("", small))
    return next((known[spelling] for known in groups for spelling in spellings if spelling in known), None)


def listed(words: Mapping[str, Word], width: int = 100) -> str:
    """Return words as the lines that ``--help`` prints below the options."""
    indent = 2 + max(map(len, words)) + 2
    lines = []
    for name, word in words.items():
        first = f"  {name}".ljust(indent)
        lines.append(
            textwrap.fill(
                str(word), width, initial_indent=first, subsequent_indent=" " * indent, break_on_hyphens=False
            )
        )
    return "\n".join(lines)
