"""What the benchmarks share: candidates in turn on one machine, and results that say where they are from.

A shared machine is fast one minute and slow the next. So all candidates run in one process, one call each per round,
and are compared within a round: the ratio of two calls that saw the same minute says more than two times that did not.
"""

import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable
from datetime import date
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

RESULTS = Path(__file__).parent / "results"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
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


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Automatic mixed precision for bfloat16, nothing for float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16)


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


def interleaved(
    candidates: dict[str, Callable[[], object]],
    rounds: int,
    warm_up: int,
    device: torch.device,
    prepare: Callable[[str], None] = lambda name: None,
) -> dict[str, list[float]]:
    """Seconds of each call of each candidate, one call each per round.

    Every other round goes backwards, so that nobody always follows the same one or always comes last.

    Args:
        candidates: What to time, by name.
        rounds: Timed calls of each.
        warm_up: Calls of each before that, not timed.
        device: Where they compute.
        prepare: Called with the candidate's name before each of its calls, off the clock.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(-warm_up, rounds):
        for name in candidates if turn % 2 == 0 else reversed(candidates):
            prepare(name)
            synchronise(device)
            seconds = timed(candidates[name], device)
            if turn >= 0:
                times[name].append(seconds)
    return times


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Seconds until a call's work is done, on the GPU too; nothing may be under way there when it begins."""
    start = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - start


def repeated(call: Callable[[], object], times: int) -> Callable[[], None]:
    """A call that makes several."""

    def calls() -> None:
        for _ in range(times):
            call()

    return calls


def synchronise(device: torch.device) -> None:
    """Wait until the GPU has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def compared(times: dict[str, list[float]], images: int, peers: Collection[str]) -> dict[str, dict[str, Any]]:
    """Images per second of each candidate, and its speed as a multiple of that of the fastest among the peers.

    Both are quartiles over the rounds, of which each has ``images`` per call; the multiple is taken within a round.
    """
    best = min((name for name in times if name in peers), key=lambda name: statistics.median(times[name]), default=None)
    rows = {}
    for name, seconds in times.items():
        rows[name] = {"images_per_second": quartiles(images / second for second in seconds)}
        if best is not None:
            ratios = (other / second for other, second in zip(times[best], seconds, strict=True))
            rows[name]["against_best_peer"] = quartiles(ratios)
    return rows


def quartiles(values: Iterable[float]) -> list[float]:
    """The first quartile, the median and the third.

    >>> quartiles([4.0, 1.0, 2.0, 3.0, 5.0])
    [2.0, 3.0, 4.0]
    """
    shares = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    return torch.tensor(list(values), dtype=torch.float64).quantile(shares).tolist()


def spread(three: list[float] | None, form: str) -> str:
    """Quartiles as text, nothing for None.

    >>> spread([2.0, 3.0, 4.0], ".1f")
    '3.0 (2.0 to 4.0)'
    """
    return "{1:{0}} ({2:{0}} to {3:{0}})".format(form, three[1], three[0], three[2]) if three else ""


def speed(three: list[float] | None) -> str:
    """Quartiles of images per second as text, nothing for None.

    >>> speed([1234.5, 130000.0, 131234.5]), speed([2.84, 3.21, 4.0])
    ('130,000 (1,234 to 131,234)', '3.2 (2.8 to 4.0)')
    """
    return spread(three, ",.0f" if three and three[1] >= 100 else ",.1f")


def plus_minus(values: list[float], form: str) -> str:
    """Mean and sample standard deviation as text, the value alone if there is one, nothing if there is none.

    >>> plus_minus([1.0, 2.0, 3.0], "+.1f"), plus_minus([2.0], ".1f"), plus_minus([], ".1f")
    ('+2.0 ± 1.0', '2.0', '')
    """
    if len(values) < 2:
        return f"{values[0]:{form}}" if values else ""
    return f"{statistics.mean(values):{form}} ± {statistics.stdev(values):{form.removeprefix('+')}}"


def matmul_ceiling(products: Iterable[tuple[int, int, int]], dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of the fastest of some matrix products: what is left to a model when all else costs nothing.

    Args:
        products: Rows, input and output channels of each product.
        dtype: Type of the numbers, which are random: products of zeros are faster.
        device: Where to multiply.
    """
    fastest = 0.0
    repeats = 100 if device.type == "cuda" else 1  # on a GPU, so many that waiting for the last costs nothing
    for rows, inputs, outputs in products:
        x = torch.randn(rows, inputs, dtype=dtype, device=device)
        weight = torch.randn(outputs, inputs, dtype=dtype, device=device)
        multiply = repeated(partial(F.linear, x, weight), repeats)
        seconds = min(timed(multiply, device) for _ in range(20))
        fastest = max(fastest, repeats * 2 * rows * inputs * outputs / seconds)
    return fastest


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
