"""Sentences of the literature, each with an experiment: what was measured, a control, and the answer.

Trains small models on one thread, a cell for each setting and seed. A cell is written to claims_NAME.json as soon as it
is measured, and the next call goes on with those that this commit and machine lack; ``--minutes`` ends a call early.

    python benchmarks/claims.py reach
    python benchmarks/claims.py norms [--seeds 0 1 2] [--minutes 3]
    python benchmarks/claims.py cifar10 --data data/cifar10-jpeg
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import claims_cifar10
import claims_cost
import claims_figures
import claims_heads
import claims_norms
import claims_objects
import claims_order
import claims_quality
import claims_reach
import claims_read
import claims_rivals
import claims_routed
import claims_scale
import torch
from claims_training import FAILS, HOLDS, OPEN
from records import RESULTS, Report, command_line, is_measured, made_at, out_of_date, place, provenance, write_cell
from training_runs import TrainingError

from vit.support.checks import check_positive
from vit.support.markdown import markdown_table

Cells = dict[str, Any]
SEEDS = [0, 1, 2]
IMAGES = "data/cifar10-jpeg"  # where docs/results.md unpacks them


@dataclass(frozen=True)
class Claim:
    """An experiment about one or several sentences.

    Args:
        title: The heading of its section in docs/claims.md.
        settings: What is compared, by name.
        measure: Trains a model of a setting from a seed, on a folder of images if it takes one, and returns what is
            kept of it.
        rows: Returns what docs/claims.md says of each sentence, given all cells.
        table: Returns the numbers in Markdown.
        draw: Draws them into a file; None for no picture.
        takes_images: Whether it trains on class folders of images, and not on digits.
    """

    title: str
    settings: dict[str, dict[str, Any]]
    measure: Callable[..., dict[str, Any]]
    rows: Callable[[Cells], list[dict[str, str]]]
    table: Report
    draw: Callable[[Cells, Path], None] | None = None
    takes_images: bool = False


CLAIMS = {
    "reach": Claim(
        "Places far apart",
        claims_reach.SETTINGS,
        claims_reach.measure,
        claims_reach.rows,
        claims_reach.table,
        claims_figures.draw_reach,
    ),
    "rivals": Claim(
        "Attention, convolution and recurrence",
        claims_rivals.SETTINGS,
        claims_rivals.measure,
        claims_rivals.rows,
        claims_rivals.table,
        claims_figures.draw_rivals,
    ),
    "cifar10": Claim(
        "Attention, convolution and recurrence on CIFAR-10",
        claims_cifar10.SETTINGS,
        claims_cifar10.measure,
        claims_cifar10.rows,
        claims_cifar10.table,
        partial(claims_figures.draw_rivals, sizes=claims_cifar10.SECONDS),
        takes_images=True,
    ),
    "scale": Claim(
        "Scale",
        claims_scale.SETTINGS,
        claims_scale.measure,
        claims_scale.rows,
        claims_scale.table,
        claims_figures.draw_scale,
    ),
    "quality": Claim(
        "Wrong labels and corrupted images",
        claims_quality.SETTINGS,
        claims_quality.measure,
        claims_quality.rows,
        claims_quality.table,
        claims_figures.draw_quality,
    ),
    "order": Claim(
        "Predicting hidden rows",
        claims_order.SETTINGS,
        claims_order.measure,
        claims_order.rows,
        claims_order.table,
    ),
    "read": Claim(
        "One sequence or two", claims_read.SETTINGS, claims_read.measure, claims_read.rows, claims_read.table
    ),
    "heads": Claim("Heads", claims_heads.SETTINGS, claims_heads.measure, claims_heads.rows, claims_heads.table),
    "objects": Claim(
        "What heads relate",
        claims_objects.SETTINGS,
        claims_objects.measure,
        claims_objects.rows,
        claims_objects.table,
    ),
    "routed": Claim(
        "Chosen heads",
        claims_routed.SETTINGS,
        claims_routed.measure,
        claims_routed.rows,
        claims_routed.table,
        claims_figures.draw_routed,
    ),
    "cost": Claim(
        "Time and memory",
        claims_cost.SETTINGS,
        claims_cost.measure,
        claims_cost.rows,
        claims_cost.table,
        claims_figures.draw_cost,
    ),
    "norms": Claim(
        "Residual connections and norms",
        claims_norms.SETTINGS,
        claims_norms.measure,
        claims_norms.rows,
        claims_norms.table,
        claims_figures.draw_norms,
    ),
}


COLUMNS = ("claim", "answer")


def main(arguments: list[str] | None = None) -> None:
    """Measure the cells that are missing, write each, and print the table."""
    parser = command_line(__doc__)
    parser.add_argument("name", choices=CLAIMS, help="the experiment")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="seeds of the trainings")
    parser.add_argument("--settings", nargs="+", metavar="SETTING", help="settings to train; all unless given")
    parser.add_argument("--data", type=Path, help="class folders of images, which cifar10 trains on")
    parser.add_argument("--minutes", type=float, help="after which no further cell is begun")
    options = parser.parse_args(arguments)
    claim, path = CLAIMS[options.name], options.output / f"claims_{options.name}.json"
    chosen = options.settings or list(claim.settings)
    if unknown := [name for name in chosen if name not in claim.settings]:
        parser.error(f"unknown setting {unknown[0]!r}: choose of {', '.join(map(repr, claim.settings))}")
    if claim.takes_images != (options.data is not None):
        parser.error(f"{options.name} needs --data FOLDER" if claim.takes_images else f"{options.name} has no --data")
    try:
        if claim.takes_images:
            claims_cifar10.check_images(options.data)
        if options.minutes is not None:
            check_positive("--minutes", options.minutes)
    except ValueError as error:
        parser.error(str(error))
    torch.set_num_threads(1)  # the models are too small for more
    images = (options.data,) if claim.takes_images else ()
    start = time.monotonic()
    for seed in options.seeds:
        for name in chosen:
            cell = f"{name}, seed {seed}"
            if is_measured(path, cell):
                continue
            if options.minutes is not None and time.monotonic() - start > 60 * options.minutes:
                print(f"{cell} and what follows it is left for the next call", file=sys.stderr)
                return
            try:
                measured = claim.measure(claim.settings[name], seed, *images)
            except TrainingError as error:
                raise SystemExit(f"error: {error}") from None
            made = provenance() | {"command": command_of(options.name)}
            write_cell(
                path, cell, made | {"setting": name, "seed": seed} | measured, lambda cells: report(claim, cells)
            )
            print(f"{cell}: {json.dumps(measured)[:120]}", file=sys.stderr)
    if claim.draw is not None:
        claim.draw(json.loads(path.read_text()), path.with_suffix(".png"))
    print(path.with_suffix(".md").read_text())


def command_of(name: str) -> str:
    """Return the command that measures an experiment."""
    return f"python benchmarks/claims.py {name}" + (f" --data {IMAGES}" if CLAIMS[name].takes_images else "")


def report(claim: Claim, cells: Cells) -> str:
    """Return the rows and the numbers of an experiment as Markdown."""
    return f"# Claims\n\n{answers(claim.rows(cells))}\n\n{claim.table(cells)}\n\n{origins(cells)}\n"


def answers(rows: list[dict[str, str]]) -> str:
    """Return a list of sentences, each with its answer first, and below it what was measured, and the control."""
    items = [
        f"- **{row['answer'].capitalize()}**: {row['sentence']} ({row['source']}).\n"
        f"  - Measured: {row['measured']}.\n  - Control: {row['control']}."
        for row in rows
    ]
    return "\n".join(items) or "No sentence has all its numbers yet."


def origins(cells: Cells) -> str:
    """Return what made the cells, where, when and at which commit, in sentences."""
    return " ".join(dict.fromkeys(made_at(origin_of(cell)) for cell in cells.values()))


def origin_of(cell: dict[str, Any]) -> dict[str, Any]:
    """Return command, machine, date and commit of a cell, as ``made_at`` reads them."""
    kept = {name: cell[name] for name in ("command", "commit", "stale", "fingerprint") if name in cell}
    return kept | {"machine": place(cell["machine"]), "date": cell["machine"]["date"]}


def measured(name: str) -> Cells:
    """Return the cells of an experiment; none if it was not measured."""
    path = RESULTS / f"claims_{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def of_section(name: str) -> str:
    """Return the claims of a section with what was measured, their controls, and the command that measures them."""
    return f"{answers(CLAIMS[name].rows(measured(name)))}\n\nMeasured by `{command_of(name)}`."


def overview() -> str:
    """Return how many claims hold, and a table of all: below the title of each section, its claims."""
    table, found = [], Counter()
    for name, claim in CLAIMS.items():
        cells = measured(name)
        rows = claim.rows(cells)
        if rows:
            section = f"**[{claim.title}](#{anchor(claim.title)})**{out_of_date(cells.values())}"
            table.append(dict(zip(COLUMNS, (section, ""), strict=True)))
        for row in rows:
            table.append(dict(zip(COLUMNS, (row["sentence"], row["answer"]), strict=True)))
        found.update(row["answer"] for row in rows)
    counted = f'{found[HOLDS]} hold here, {found[FAILS]} do not, and {found[OPEN]} stay open ("cannot tell")'
    warning = "The intervals are not corrected for their number: expect about one in twenty to miss the true value."
    return f"Of {found.total()} claims, {counted}. {warning}\n\n{markdown_table(table)}"


def anchor(title: str) -> str:
    """Return the name of a section in a link to it.

    >>> anchor("Attention, convolution and recurrence")
    'attention-convolution-and-recurrence'
    """
    return title.lower().replace(",", "").replace(" ", "-")


if __name__ == "__main__":
    main()
