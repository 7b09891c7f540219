"""What the benchmarks write: cells of results in JSON, each with where it is from, and a report on them beside it."""

import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "torchvision", "timm", "vit-pytorch", "transformers")


def machine() -> dict[str, Any]:
    """What a result depends on besides the code, and when it was made."""
    installed = {package.name: package.version for package in distributions()}
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "avx512_bf16": torch.cpu._is_avx512_bf16_supported(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "versions": {name: installed[name] for name in PACKAGES if name in installed},
        "load": round(os.getloadavg()[0], 2),
        "date": str(date.today()),
    }


def command() -> str:
    """What was typed to start this program."""
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def origin() -> dict[str, str]:
    """What was typed, where, and when."""
    facts = machine()
    return {"command": command(), "machine": place(facts), "date": facts["date"]}


def commit() -> str:
    """The commit that is checked out, with "-dirty" if files differ from it; nothing where git knows none."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def made(cell: dict[str, Any]) -> str:
    """The command and the machine of a cell of results, as a sentence."""
    facts = cell["machine"]
    others = ", ".join(f"{name} {number}" for name, number in facts["versions"].items() if name != "torch")
    return (
        f"Made by `{cell['command']}` on {place(facts)}, load {facts['load']} before, Python {facts['python']}, "
        f"{others}, {facts['date']}."
    )


def place(facts: dict[str, Any]) -> str:
    """A machine and its PyTorch in a few words."""
    gpu = f"{facts['gpu']} with " if facts["gpu"] else ""
    threads = "1 thread" if facts["threads"] == 1 else f"{facts['threads']} threads"
    return f"{gpu}{threads} of {facts['processor']}, torch {facts['versions']['torch']}"


def plus_minus(values: list[float], form: str) -> str:
    """Mean and sample standard deviation as text, the value alone if there is one, nothing if there is none.

    >>> plus_minus([1.0, 2.0, 3.0], "+.1f"), plus_minus([2.0], ".1f"), plus_minus([], ".1f")
    ('+2.0 ± 1.0', '2.0', '')
    """
    if len(values) < 2:
        return f"{values[0]:{form}}" if values else ""
    return f"{statistics.mean(values):{form}} ± {statistics.stdev(values):{form.removeprefix('+')}}"


def markdown_table(rows: list[dict[str, str]]) -> str:
    """Rows as Markdown, with every column that one of them has.

    >>> print(markdown_table([{"name": "a", "speed": "3"}, {"name": "b"}]))
    | name | speed |
    |---|---|
    | a | 3 |
    | b |  |
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [f"| {' | '.join(row.get(column, '') for column in columns)} |" for row in rows]
    return "\n".join(lines)


def write_cell(path: Path, name: str, cell: dict[str, Any], report: Callable[[dict[str, Any]], str]) -> None:
    """Put one cell into a JSON file of results, in the place of an older one, and the report on all beside it."""
    cells = json.loads(path.read_text()) if path.exists() else {}
    write_cells(path, cells | {name: cell}, report)


def write_cells(path: Path, cells: dict[str, Any], report: Callable[[dict[str, Any]], str]) -> None:
    """Write all cells of a file of results in the order of their names, and the report on them beside it.

    Whoever is stopped while writing leaves the results as they were.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = dict(sorted(cells.items()))
    unfinished = path.with_suffix(".part")
    for place, text in ((path, json.dumps(cells, indent=1) + "\n"), (path.with_suffix(".md"), report(cells))):
        unfinished.write_text(text)
        unfinished.replace(place)


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.*)", facts.read_text()) if facts.exists() else None
    return named[1] if named else platform.processor() or platform.machine()
