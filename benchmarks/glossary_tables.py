"""The words of vit/glossary.py as the tables and lists of docs/."""

import re

from vit.glossary import CONTROL, HEADS, MAPS, OF_PAGES
from vit.support.markdown import markdown_table
from vit.support.words import Word


def methods() -> str:
    """Return the methods that are no controls as a table in Markdown, with their papers and without formulas."""
    rows = []
    for name, word in MAPS.items():
        if not word.says.startswith(CONTROL):
            papers = "; ".join(part for part in word.source.split("; ") if re.search(r"\b(19|20)\d\d\b", part))
            shows = word.says + f" ({papers})" * bool(papers)
            rows.append({"method": f"`{name}`", "what it shows": shows, "take it": word.take.removeprefix("Take it ")})
    return markdown_table(rows)


def kinds() -> str:
    """Return the kinds of head as a table in Markdown."""
    rows = [
        {"kind": name, "the test": word.says + f" ({word.source})" * bool(word.source), "what follows": word.take}
        for name, word in HEADS.items()
    ]
    return markdown_table(rows)


def glossary() -> str:
    """Return the words of pages as lists in Markdown, each once; words of one meaning share a line.

    A word that has another meaning on a page is followed by the name of that page.
    """
    parts: list[str] = []
    listed: set[tuple[str, Word]] = set()
    for title, words in OF_PAGES.items():
        names: dict[str, list[str]] = {}
        before = {name for name, _ in listed}
        for name, word in words.items():
            if (name, word) not in listed:
                place = f" ({title[0].lower()}{title[1:]})" * (name in before)
                names.setdefault(str(word), []).append(name + place)
        listed |= set(words.items())
        by_name = sorted(names.items(), key=lambda line: line[1][0].casefold())
        lines = [f"- **{', '.join(alike)}**: {meaning}" for meaning, alike in by_name]
        parts.append("\n".join([f"## {title}", "", *lines]))
    return "\n\n".join(parts)
