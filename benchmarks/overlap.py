"""Accuracy of trained models whose patches overlap by half, without further training.

Each model is asked about all test images, with its own patches and with a stride of half a patch. A model is a cell,
written to overlap.json and overlap.md in place of an older one of the same recipe and seed.

    python benchmarks/overlap.py --data data/cifar10-jpeg --checkpoints runs/cifar10/*/checkpoints/last.ckpt
        [--output benchmarks/results]
"""

import sys
from pathlib import Path
from typing import Any

from explanations import photographs
from records import command_line, made_at, origin, write_cell
from training_runs import about_training

import vit
from vit.analysis.accuracy import accuracy
from vit.support.markdown import markdown_table
from vit.weights import start_from


def measure(checkpoint: Path, data: Path) -> list[dict[str, Any]]:
    """Return the accuracy of a model with its own stride and with half a patch."""
    model = vit.load(checkpoint)
    images, labels = photographs(data / "test", sys.maxsize, model)
    p, q = model.patch_embed.patch_size
    finer = vit.VisionTransformer(**(model.config | {"patch_stride": (p // 2, q // 2)})).eval()
    start_from(finer, checkpoint)
    return [
        {
            "stride": list(asked.patch_embed.patch_stride),
            "grid": list(asked.patch_embed.grid_size),
            "images": len(images),
            "accuracy": accuracy(asked, images, labels),
        }
        for asked in (model, finer)
    ]


def table(cells: dict[str, Any]) -> str:
    """Return the accuracies as a Markdown table."""
    rows = [
        {
            "training": name,
            "grid of patches": "{} x {}".format(*row["grid"]),
            "pixels from one to the next": " x ".join(map(str, dict.fromkeys(row["stride"]))),
            "test accuracy": f"{100 * row['accuracy']:.2f} %",
        }
        for name, cell in cells.items()
        for row in cell["rows"]
    ]
    return markdown_table(rows)


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    made = dict.fromkeys(made_at(cell["made"]) for cell in cells.values())
    return f"# Overlapping patches\n\n{table(cells)}\n\n{' '.join(made)}\n"


def main(arguments: list[str] | None = None) -> None:
    """Measure model by model, write and print."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with test/, class folders of images in it")
    parser.add_argument("--checkpoints", type=Path, nargs="+", metavar="FILE", help="of models trained on such images")
    options = parser.parse_args(arguments)
    path = options.output / "overlap.json"
    try:
        trainings = {checkpoint: about_training(checkpoint) for checkpoint in options.checkpoints}
    except ValueError as error:
        parser.error(str(error))
    for checkpoint, training in trainings.items():
        recipe, seed = training["recipe"], training["seed"]
        about = {"recipe": recipe, "seed": seed, "training": training, "made": origin()}
        cell = about | {"rows": measure(checkpoint, options.data)}
        write_cell(path, f"{recipe}, seed {seed}", cell, report)
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
