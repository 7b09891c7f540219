"""The HTML page of ``python -m vit.analysis``: each question with its answer, its control and its pictures.

The template is ``answers_page.html``; ``vit.support.pages`` renders it.
"""

import csv
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from vit.analysis.answer import Answer
from vit.glossary import ANALYSIS, EVERYWHERE, HEADS
from vit.support.files import replacing
from vit.support.pages import data_url, page_templates

PAGE, TABLE = "index.html", "heads.csv"
# Columns of the table on the page. The file heads.csv has all columns.
SHOWN = {
    "kind": "kind",
    "distance": "distance, px",
    "entropy": "entropy",
    "positional": "same for all images",
    "follows": "follows content",
    "fall_without": "carries",
    "importance_ablation": "loss without it",
    "probe_class_accuracy": "class read",
    "probe_position": "place read",
    "rare_patches": "rare patches",
}


def write_page(
    folder: Path, title: str, facts: Sequence[str], answers: Mapping[str, Answer | str], command: Sequence[str]
) -> Path:
    """Write ``index.html`` into the folder of the pictures, and return its path.

    Facts hold for all answers. If a question has no answer, a string gives the reason. ``command`` made the page.
    """
    found = [answer for answer in answers.values() if isinstance(answer, Answer)]
    rows = head_rows(found)
    page = (
        page_templates(ANALYSIS, EVERYWHERE)
        .get_template("analysis/answers_page.html")
        .render(
            kinds=HEADS,
            title=title,
            facts=facts,
            sections=[_section(question, answer, folder) for question, answer in answers.items()],
            columns={name: SHOWN[name] for name in SHOWN if any(name in row for row in rows)},
            rows=[{name: _shown(value) for name, value in row.items()} for row in rows],
            command=shlex.join(command),
        )
    )
    path = folder / PAGE
    with replacing(path) as unfinished:
        unfinished.write_text(page, encoding="utf-8")
    return path


def _section(question: str, answer: Answer | str, folder: Path) -> dict[str, object]:
    if isinstance(answer, str):
        return {"question": question, "missing": answer}
    pictures = [(data_url(folder / name), name, shown) for name, shown in answer.pictures.items()]
    return {"question": question, "found": answer.found, "control": answer.control, "pictures": pictures}


def _shown(value: object) -> str:
    return f"{value:z.2f}" if isinstance(value, float) else str(value)


def head_rows(answers: Sequence[Answer]) -> list[dict[str, object]]:
    """Return one row per head: its layer, its number, and the columns of all answers.

    >>> head_rows([Answer("", "", columns={"kind": [["local"], ["sink"]], "entropy": [[0.5], [0.25]]})])[1]
    {'layer': 1, 'head': 0, 'kind': 'sink', 'entropy': 0.25}
    """
    rows: dict[tuple[int, int], dict[str, object]] = {}
    for answer in answers:
        for name, layers in answer.columns.items():
            for layer, heads in enumerate(layers):
                for head, value in enumerate(heads):
                    rows.setdefault((layer, head), {"layer": layer, "head": head})[name] = value
    return [rows[place] for place in sorted(rows)]


def write_table(path: Path, answers: Sequence[Answer]) -> None:
    """Write the table of heads as CSV, one row per head."""
    rows = head_rows(answers)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(path) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
