"""Ablation of a recipe: the recipe, and the recipe with one part changed, trained for the same time.

The budget is in steps and not in seconds, so that two trainings can share the cores; a part that drops more patches
than the recipe gets more steps, one that drops fewer gets fewer. The measure is the accuracy on one image in ten, held
out of the training images; the test set is not read. A cell is a recipe, a number of steps, a part and a seed; it is
written to ablation.json and ablation.md as soon as the run ends, in place of an older one. A part that the recipe has
already is skipped; a run that fails is one line on stderr, and the others continue.

    python benchmarks/ablate.py configs/cifar10_quick.yaml --data data/cifar10-jpeg --steps 1400 [--seeds 0 1]
        [--only "class token alone" ...] [--parallel 2] [--output benchmarks/results]

Parts that were removed from the code have a table of their own, with the last commit that has them; the command above
repeats them there. `note_removed` moves a part to that table.
"""

import argparse
import itertools
import json
import statistics
import sys
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from accuracy import arguments_of, mean, origins, values
from records import RESULTS, command_line, commit, machine, plus_minus, write_cell, write_cells
from training_runs import described, finished, train

from vit.support.markdown import markdown_table

RECIPE = "the recipe"
PARTS: dict[str, list[str]] = {
    "AdamW instead of Muon": ["--model.optimizer", "adamw"],
    "Muon instead of AdamW": ["--model.optimizer", "muon"],
    "Glorot instead of mimetic start": ["--model.init", "glorot"],
    "mimetic instead of Glorot start": ["--model.init", "mimetic"],
    "class token alone": ["--model.pool", "cls"],
    "mean of the patches alone": ["--model.pool", "mean"],
    "normal positions, Glorot start": ["--model.pos_embed_init", "normal", "--model.init", "glorot"],
    "no label smoothing": ["--model.label_smoothing", "0"],
    "no flip": ["--data.flip", "false"],
    "no crop": ["--data.crop_padding", "0"],
    "EMA 0.999": ["--model.ema_decay", "0.999"],
    "all patches": ["--model.patch_drop", "0"],
    "half of the patches": ["--model.patch_drop", "0.5"],
    "half of the patches to the end": ["--model.patch_drop", "0.5", "--model.patch_drop_until", "1"],
    "qk_norm": ["--model.qk_norm", "true"],
    "batch of 64": ["--data.batch_size", "64"],
    "alternating flip": ["--data.flip", "alternate"],
    "no qkv bias": ["--model.qkv_bias", "false"],
    "cosine decay": ["--model.decay", "cosine"],
}
# Time of a step on 64 images over that of one on 128, of cifar10_quick on two threads: 886 and 999 images per second.
ON_HALF_THE_IMAGES = 0.56
# Time of a step on half of the patches over that of a step on all of them (one thread, bfloat16, 65 tokens).
ON_HALF = 0.56
ENDLESS = ["--trainer.max_time", "null", "--trainer.max_epochs=-1"]
JUDGED = ["--data.val_fraction", "0.1", "--trainer.limit_test_batches", "0"]
KEPT = ("val_accuracy", "val_loss", "steps", "seed", "parameters", "precision")
KEPT += ("data", "command")

REPORT = """# Recipes with one part changed

The same number of steps each, but more for a part that drops more patches or takes smaller batches, and fewer for one
that drops fewer. The measure is the validation accuracy after the last step. The validation images, one in ten, are
held out of the training images, and the test set is not read. "Difference": points of accuracy against the recipe
under the same seed. ± is the sample standard deviation over seeds.
"""


def section(recipe: str, steps: int, group: list[dict[str, Any]]) -> str:
    """Return a recipe and its parts as Markdown, from the greatest loss to the greatest gain."""
    whole = {cell["seed"]: cell for cell in group if cell["part"] == RECIPE}
    parts: dict[str, list[dict[str, Any]]] = {}
    for cell in group:
        beside = whole.get(cell["seed"]) if cell["part"] != RECIPE else None
        points = _points(cell, beside) if beside else None
        parts.setdefault(cell["part"], []).append(cell | {"points": points})
    order = sorted(parts.items(), key=lambda part: (part[0] != RECIPE, mean(part[1], "points")))
    rows = [
        {
            "part": name,
            "changed by": f"`{' '.join(cells[0]['changed'])}`" if cells[0]["changed"] else "",
            "steps": f"{cells[0]['steps']:,}",
            "validation accuracy, %": plus_minus(values(cells, "val_accuracy", 100), ".2f"),
            "difference": plus_minus(values(cells, "points"), "+.2f"),
            "validation loss": plus_minus(values(cells, "val_loss"), ".3f"),
            "seeds": ", ".join(str(cell["seed"]) for cell in sorted(cells, key=lambda cell: cell["seed"])),
        }
        for name, cells in order
    ]
    made = origins(parts.get(RECIPE, group[:1]))
    return f"## {recipe}, {steps:,} steps\n\n{markdown_table(rows, right=list(rows[0])[2:-1])}\n\n{made}\n"


def _points(cell: dict[str, Any], beside: dict[str, Any]) -> float:
    return 100 * (cell["val_accuracy"] - beside["val_accuracy"])


def removed(notes: list[dict[str, Any]]) -> str:
    """Return the parts that are no longer in the code, as Markdown."""
    rows = [
        {
            "part": note["part"],
            "tried on": f"{note['recipe']}, {note['budget']:,} steps",
            "difference": plus_minus(note["points"], "+.2f"),
            "seeds": ", ".join(str(seed) for seed in note["seeds"]),
            "last commit that has it": note["commit"],
            "by": f"`{' '.join(note['changed'])}`",
            "date": note["date"],
        }
        for note in sorted(notes, key=lambda note: statistics.mean(note["points"]))
    ]
    return f"## Tried and removed\n\n{markdown_table(rows, right=['difference'])}\n"


def sections(cells: dict[str, Any]) -> list[str]:
    """Return a section for each recipe and number of steps, and one for what was removed."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for cell in cells.values():
        if "note" not in cell:
            groups.setdefault((cell["recipe"], cell["budget"]), []).append(cell)
    notes = [cell["note"] for cell in cells.values() if "note" in cell]
    return [section(*key, group) for key, group in groups.items()] + ([removed(notes)] if notes else [])


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    return "\n".join([REPORT, *sections(cells)])


def note_removed(part: str, path: Path = RESULTS / "ablation.json") -> None:
    """Replace the cells of a part that is removed from the code by one note for each recipe and number of steps.

    Args:
        part: The part's name.
        path: The results of the ablation.

    Raises:
        ValueError: If the recipe has no cell under the same seed, or the part's cell has no clean commit.
    """
    cells = json.loads(path.read_text())
    notes: dict[str, Any] = {}
    for name, cell in [*cells.items()]:
        if cell.get("part") != part:
            continue
        beside = cells.get(cell_name(cell | {"part": RECIPE}))
        if beside is None:
            raise ValueError(f"{path} has {name!r}, but not {RECIPE} under that seed: run ablate.py for it")
        if not cell["commit"] or cell["commit"].endswith("-dirty"):
            raise ValueError(f"{name!r} is from commit {cell['commit']!r}: commit the part, and run it again")
        first = {key: cell[key] for key in ("part", "recipe", "budget", "changed", "commit", "command")}
        first |= {"date": cell["machine"]["date"], "points": [], "seeds": []}
        title = f"removed: {cell['recipe']}, {cell['budget']} steps: {part}"
        # A note of other seeds may exist already.
        note = notes.setdefault(title, cells.get(title, {"note": first}))["note"]
        note["points"].append(_points(cell, beside))
        note["seeds"].append(cell["seed"])
        del cells[name]
    write_cells(path, cells | notes, report)


def cell_name(cell: dict[str, Any]) -> str:
    """Return the name of a cell."""
    return f"{cell['recipe']}, {cell['budget']} steps: {cell['part']}, seed {cell['seed']}"


def chosen_parts(config: str, data: Path | None, only: list[str] | None) -> dict[str, tuple[list[str], float]]:
    """Return the parts to run, without those that the recipe has already: arguments and factor of steps, by name.

    Raises:
        ValueError: If train.py refuses the recipe.
    """
    unchanged = described(arguments_of(config, data, 0, []))
    if not unchanged:
        raise ValueError(f"train.py refuses {config}: see the output of python train.py fit --config {config}")
    parts = {}
    for name, changed in ({RECIPE: []} | PARTS).items():
        if only and name not in only:
            continue
        settings = described(arguments_of(config, data, 0, changed))
        if changed and settings == unchanged:
            print(f"{name}: skipped, {config} has it already", file=sys.stderr)
        else:
            parts[name] = changed, _time_of_step(unchanged) / _time_of_step(settings)
    return parts


def _time_of_step(settings: str) -> float:
    """Return the mean time of a step over that of a step on all patches of 128 images."""
    chosen = yaml.safe_load(settings)
    model, images = chosen["model"]["init_args"], chosen["data"]["init_args"]["batch_size"] / 128
    on_patches = 1 - model["patch_drop_until"] * (1 - ON_HALF) * model.get("patch_drop", 0.0) / 0.5
    return on_patches * (1 - (1 - images) * (1 - ON_HALF_THE_IMAGES) / 0.5)


def main(arguments: list[str] | None = None) -> None:
    """Train and write part by part, and print all cells."""
    parser = command_line(__doc__)
    parser.add_argument("config", help="the recipe, a file such as configs/cifar10_quick.yaml")
    parser.add_argument("--data", type=Path, help="class folders of images, instead of the recipe's data")
    parser.add_argument("--steps", type=int, required=True, help="steps of each training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="(default: 0)")
    parser.add_argument("--only", nargs="+", choices=[RECIPE, *PARTS], metavar="NAME", help="parts (default: all)")
    parser.add_argument("--parallel", type=int, default=1, help="trainings at a time; 2 or more have one thread each")
    options = parser.parse_args(arguments)
    path = options.output / "ablation.json"
    try:
        parts = chosen_parts(options.config, options.data, options.only)
    except ValueError as error:
        parser.error(str(error))
    pool = ThreadPoolExecutor(options.parallel)
    try:
        failed = run_all(pool, options, parts, path)
    finally:
        pool.shutdown(cancel_futures=True)  # after an interrupt, waiting trainings never start
    if path.exists():
        print(path.with_suffix(".md").read_text())
    if failed:
        raise SystemExit(f"error: {failed} of {len(parts) * len(options.seeds)} trainings failed")


def run_all(pool: Executor, options: argparse.Namespace, parts: dict[str, tuple[list[str], float]], path: Path) -> int:
    """Train every part under every seed, write each cell, and return the number of failed trainings."""
    recipe, failed = Path(options.config).stem, 0
    threads = 1 if options.parallel > 1 else None
    facts, at = machine() | ({"threads": threads} if threads else {}), commit()
    runs = {}
    for seed, (number, (name, (changed, share))) in itertools.product(options.seeds, enumerate(parts.items())):
        # An experiment of its own, since two runs that start at once would choose the same folder.
        apart = ["--experiment", f"ablation_{recipe}_{number}_{seed}"]
        steps = ["--trainer.max_steps", str(round(options.steps * share))]
        run = arguments_of(options.config, options.data, seed, [*ENDLESS, *steps, *JUDGED, *changed, *apart])
        runs[pool.submit(train, f"{name}, seed {seed}", run, threads)] = name
    for name, results in finished(runs):
        if results is None:
            failed += 1
            continue
        cell = {"recipe": recipe, "budget": options.steps, "part": name, "changed": parts[name][0]}
        cell |= {key: results[key] for key in KEPT} | {"machine": facts, "commit": at}
        write_cell(path, cell_name(cell), cell, report)
    return failed


if __name__ == "__main__":
    main()
