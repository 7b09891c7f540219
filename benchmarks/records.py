"""Cells of results in JSON, each with its command, machine, date and commit, and the reports written beside them."""

import argparse
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from scipy import special

from vit.support.files import replacing
from vit.support.markdown import markdown_table

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "torchvision", "timm", "vit-pytorch", "transformers")
# Results that one benchmark has just written do not make the commit of the next one dirty.
WRITTEN = ("benchmarks/results", "benchmarks/RESULTS.md", "README.md", "docs")
CODE = (":/", *(f":(top,exclude){path}" for path in WRITTEN))

Report = Callable[[dict[str, Any]], str]


def command_line(description: str) -> argparse.ArgumentParser:
    """Return a parser that shows a script's docstring as its help and has the option --output."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    return parser


def machine() -> dict[str, Any]:
    """Return what a result depends on besides the code, and today's date."""
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "avx512_bf16": torch.cpu._is_avx512_bf16_supported(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "versions": versions,
        "load": round(os.getloadavg()[0], 2),
        "date": str(date.today()),
    }


def command() -> str:
    """Return the command that started this program, without the folder of its results."""
    words = sys.argv[1:]
    if "--output" in words:
        place = words.index("--output")
        words = words[:place] + words[place + 2 :]
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


def commit() -> str:
    """Return the commit that is checked out, with "-dirty" if files other than results differ; "" without git."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=False)
        changes = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *CODE], capture_output=True, check=False)
    except FileNotFoundError:
        return ""
    return "" if head.returncode else head.stdout.strip() + ("-dirty" if changes.returncode else "")


def provenance() -> dict[str, Any]:
    """Return command, machine and commit, as every cell has them."""
    return {"command": command(), "machine": machine(), "commit": commit()}


def origin() -> dict[str, Any]:
    """Return command, machine in words, load, date and commit, as results that are measured in one go have them."""
    facts = machine()
    kept = {name: facts[name] for name in ("threads", "load", "date")}
    return {"command": command(), "machine": place(facts), "commit": commit()} | kept


def made_at(origin: dict[str, Any]) -> str:
    """Return the origin of results that were measured in one go, as a sentence."""
    return f"Made by `{origin['command']}` on {origin['machine']}, {origin['date']}, {commit_of(origin)}."


def made(cell: dict[str, Any]) -> str:
    """Return command, machine and commit of a cell, as a sentence."""
    facts = cell["machine"]
    others = ", ".join(f"{name} {number}" for name, number in facts["versions"].items() if name != "torch")
    return (
        f"Made by `{cell['command']}` on {place(facts)}, load {facts['load']} before, Python {facts['python']}, "
        f"{others}, {facts['date']}, {commit_of(cell)}."
    )


def commit_of(record: dict[str, Any]) -> str:
    """Return the commit of a result in words, and that it is out of date if fingerprint.py has found it so.

    A result without a fingerprint is not checked.

    >>> known = {"commit": "abc1234", "fingerprint": {}}
    >>> commit_of(known), commit_of(known | {"stale": "vit/model has changed"}), commit_of({"commit": "abc1234"})
    ('commit abc1234', 'abc1234 (out-of-date)', 'abc1234 (unchecked)')
    >>> commit_of({})
    'commit not recorded (unchecked)'
    """
    if record.get("stale"):
        return f"{record['commit']} (out-of-date)"
    if "fingerprint" not in record:
        return f"{record.get('commit') or 'commit not recorded'} (unchecked)"
    return f"commit {record['commit']}" if record.get("commit") else "commit not recorded"


def mark_of(record: dict[str, Any]) -> str:
    """Return the mark of a result that is out of date, or of which nothing tells whether it is."""
    return "(out-of-date)" if record.get("stale") else "(unchecked)" * ("fingerprint" not in record)


def out_of_date(cells: Iterable[dict[str, Any]]) -> str:
    """Return the mark of a number whose cells are not all known to be up to date."""
    marks = {mark_of(cell.get("made", cell)) for cell in cells}
    return next((f" {mark}" for mark in ("(out-of-date)", "(unchecked)") if mark in marks), "")


def place(facts: dict[str, Any]) -> str:
    """Return a machine and its PyTorch in a few words."""
    gpu = f"{facts['gpu']} with " if facts["gpu"] else ""
    threads = "1 thread" if facts["threads"] == 1 else f"{facts['threads']} threads"
    return f"{gpu}{threads} of {facts['processor']}, torch {facts['versions']['torch']}"


def plus_minus(values: list[float], form: str) -> str:
    """Return mean and sample standard deviation as text: one value alone, no value as "".

    >>> plus_minus([1.0, 2.0, 3.0], "+.1f"), plus_minus([2.0], ".1f"), plus_minus([], ".1f")
    ('+2.0 ± 1.0', '2.0', '')
    """
    if len(values) < 2:
        return f"{values[0]:{form}}" if values else ""
    return f"{statistics.mean(values):{form}} ± {statistics.stdev(values):{form.removeprefix('+')}}"


def span(numbers: list[float], form: str) -> str:
    """Return the smallest and the largest number as text.

    >>> span([1.2, 1.1, 1.3], ".1f"), span([2.0, 2.01], ".1f")
    ('1.1 to 1.3', '2.0')
    """
    return " to ".join(dict.fromkeys(f"{number:{form}}" for number in (min(numbers), max(numbers))))


def interval(differences: list[float]) -> str:
    """Return the 95 % interval of the mean of differences, by Student's t; "" of fewer than two.

    >>> interval([1.0, 2.0, 3.0]), interval([1.0])
    ('-0.5 to +4.5', '')
    """
    if len(differences) < 2:
        return ""
    error = statistics.stdev(differences) / len(differences) ** 0.5
    return _within(statistics.mean(differences), error, len(differences) - 1)


def welch(first: list[float], second: list[float]) -> str:
    """Return the difference of two means and its 95 % interval, by Welch's t; without it for single values.

    >>> welch([80.0, 81.0, 79.0], [62.0, 61.0, 63.0]), welch([80.0], [62.0, 61.0])
    ('+18.0 (+15.7 to +20.3)', '+18.5')
    """
    difference = statistics.mean(first) - statistics.mean(second)
    if min(len(first), len(second)) < 2:
        return f"{difference:+.1f}"
    parts = [(statistics.variance(values) / len(values), len(values) - 1) for values in (first, second)]
    square = sum(part for part, _ in parts)
    freedom = square**2 / sum(part**2 / count for part, count in parts) if square else 1.0
    return f"{difference:+.1f} ({_within(difference, square**0.5, freedom)})"


def _within(mean: float, error: float, freedom: float) -> str:
    half = error * special.stdtrit(freedom, 0.975)
    return f"{mean - half:+.1f} to {mean + half:+.1f}"


def comparison(
    head: str,
    cells: dict[str, Any],
    settings: Callable[[dict[str, Any]], str],
    row: Callable[[str, dict[str, Any]], dict[str, str]],
) -> str:
    """Return a report on cells that compare candidates: a section for each cell, a row for each candidate.

    Args:
        head: What stands above all sections.
        cells: The cells by name, each with "rows" by the candidate's name.
        settings: The settings of a cell, as a sentence.
        row: The readable numbers of a candidate by column, of which the first holds its name.
    """
    parts = [head]
    for name, cell in cells.items():
        rows = [row(candidate, measured) for candidate, measured in cell["rows"].items()]
        numbers = {column for row in rows for column in [*row][1:]}
        table = markdown_table(rows, right=numbers)
        parts.append(f"## {name}\n\n{settings(cell)}\n{made(cell)}\n\n{table}\n")
    return "\n".join(parts)


def is_measured(path: Path, name: str) -> bool:
    """Return whether a cell of this commit and machine is in a file of results, and print a line if so."""
    cell = json.loads(path.read_text()).get(name) if path.exists() else None
    now = commit()
    found = bool(cell and now and not now.endswith("-dirty") and cell.get("commit") == now)
    found = found and place(cell["machine"]) == place(machine())
    if found:
        print(f"{name}: measured before, at commit {now}", file=sys.stderr)
    return found


def write_cell(path: Path, name: str, cell: dict[str, Any], report: Report) -> None:
    """Write one cell into a JSON file of results, in place of an older one, and the report on all cells beside it."""
    cells = json.loads(path.read_text()) if path.exists() else {}
    write_cells(path, cells | {name: cell}, report)


def write_cells(path: Path, cells: dict[str, Any], report: Report) -> None:
    """Write all cells of a file of results in the order of their names, and the report on them beside it."""
    write_results(path, dict(sorted(cells.items())), report)


def write_results(path: Path, results: dict[str, Any], report: Report) -> None:
    """Write results as JSON and the report on them beside it, each file whole or not at all."""
    text = report(results)
    write_json(path, results)
    with replacing(path.with_suffix(".md")) as unfinished:
        unfinished.write_text(text)


def write_json(path: Path, content: Any) -> None:
    """Write a file as JSON, whole or not at all."""
    with replacing(path) as unfinished:
        unfinished.write_text(json.dumps(content, indent=1) + "\n")


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.*)", facts.read_text()) if facts.exists() else None
    return named[1] if named else platform.processor() or platform.machine()
