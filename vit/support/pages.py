"""Pages in one HTML file each: Jinja templates in the frame of `frame.html`, with the pictures inside.

A page needs no other file, no server, no network and no script. Every text in it is escaped, control characters too.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from vit.support.printable import printable
from vit.support.words import Word, find_word


def page_templates(*words: Mapping[str, Word]) -> Environment:
    """Return the templates of one page by their paths below ``vit``, such as "runs/report.html".

    In a template, ``explained(label)`` shows a label as a button that opens its meaning, from the first of these groups
    of words that has it.
    """
    templates = Environment(
        loader=PackageLoader("vit", ""), autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    templates.globals["explained"] = WordButtons(*words)
    return templates


class WordButtons:
    """Shows labels as buttons that open the meanings of their words; the frame ends with those in ``used``."""

    def __init__(self, *words: Mapping[str, Word]) -> None:
        self.words = words
        self.used: list[tuple[str, str, Word]] = []  # identifier, label, word

    def __call__(self, label: str, words: Mapping[str, Word] | None = None) -> str | Markup:
        """Return a label as a button if its word is on the page for the first time; else, or without a word, as it is.

        The word is one of ``words``, or else of the page's.
        """
        word = find_word(label, words or {}, *self.words)
        if word is None or any(word is known for _, _, known in self.used):
            return label
        name = f"word-{len(self.used)}"
        self.used.append((name, label, word))
        return BUTTON.format(name=name, label=label)


BUTTON = Markup('<button type="button" class="word" popovertarget="{name}" aria-describedby="{name}">{label}</button>')


def _shown(value: Any) -> Any:
    """Return a value as a template shows it: texts with control characters and non-UTF-8 bytes escaped."""
    return type(value)(printable(value, keep="\n\t")) if isinstance(value, str) else value


def data_url(picture: Path) -> str:
    """Return a PNG file as a URL that holds the file itself."""
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode('ascii')}"
