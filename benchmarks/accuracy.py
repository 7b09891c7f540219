"""How accurate a recipe is: the same training under several seeds, mean and spread.

Each seed is one `python train.py fit --config RECIPE --seed_everything SEED` in a process of its own, and what counts
is what its results.json says: the weights of the last step, on test images that are read once. A cell is a recipe, a
device and a seed; it is written to accuracy.json and accuracy.md as soon as the run ends, in the place of an older one.
A seed that fails is one line on stderr, and the next one goes on.

    python benchmarks/accuracy.py configs/cifar10_quick.yaml --data data/cifar10-jpeg [--seeds 0 1 2] [--name NAME]
        [--output benchmarks/results] [-- further arguments for train.py]
"""

import argparse
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import yaml
from records import RESULTS, commit, machine, markdown_table, place, plus_minus, write_cell
from training_runs import TrainingError, train

KEPT = (
    *("test_accuracy", "test_accuracy_views", "test_views", "val_accuracy", "epochs", "steps", "seconds", "petaflop"),
    *("images_per_second", "parameters", "device", "precision", "seed", "data", "command"),
)
# Column of the tables: key in a cell, what it is multiplied by, format.
COLUMNS = {
    "test accuracy, %": ("test_accuracy", 100, ".2f"),
    "with views, %": ("test_accuracy_views", 100, ".2f"),
    "validation accuracy, %": ("val_accuracy", 100, ".2f"),
    "seconds": ("seconds", 1, ",.0f"),
    "petaFLOP": ("petaflop", 1, ".3g"),
    "epochs": ("epochs", 1, ".3g"),
    "images/s": ("images_per_second", 1, ",.0f"),
}

REPORT = """# Accuracy of whole trainings

Each seed is a training of its own, judged by the weights of its last step on test images that are read once. "With
views": logits averaged over views of a test image, such as its mirror image. petaFLOP: three forward passes of matrix
products for each image seen. ± is the sample standard deviation over the seeds.
"""


def arguments_of(config: str, data: Path | None, seed: int, further: list[str]) -> list[str]:
    """What follows `python train.py fit` in the training of one seed."""
    images = ["--data", "ImageFolder", "--data.root", str(data)] if data else []
    return ["--config", config, "--seed_everything", str(seed), *images, *further]


def cell_name(cell: dict[str, Any]) -> str:
    """The name of a cell: recipe, device and seed."""
    return f"{recipe_name(cell)}, seed {cell['seed']}"


def recipe_name(cell: dict[str, Any]) -> str:
    """A recipe and where it ran: "cifar10_quick, cpu"; seconds are not the same elsewhere, and so nothing else is."""
    return f"{cell['recipe']}, {cell['device'].split(',')[0]}"


def recipes(cells: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The cells of each recipe, by its name."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in sorted(cells.values(), key=lambda cell: cell["seed"]):
        groups.setdefault(recipe_name(cell), []).append(cell)
    return dict(sorted(groups.items()))


def values(group: list[dict[str, Any]], key: str, scale: float = 1.0) -> list[float]:
    """A number of each cell that has it."""
    return [scale * cell[key] for cell in group if cell.get(key) is not None]


def mean(group: list[dict[str, Any]], key: str) -> float:
    """The mean of a number over seeds; minus infinity where there is none."""
    return statistics.mean(values(group, key) or [float("-inf")])


def summary(group: list[dict[str, Any]]) -> dict[str, str]:
    """Mean and spread of all columns over the seeds of a recipe."""
    return {title: plus_minus(values(group, key, scale), form) for title, (key, scale, form) in COLUMNS.items()}


def origins(group: list[dict[str, Any]]) -> str:
    """The commands behind a recipe, which differ in the seed, the machines and the dates, as sentences."""
    made = {}
    for cell in group:
        at = f", commit {cell['commit']}" if cell.get("commit") else ""
        origin = unseeded(cell["command"]), place(cell["machine"]), at
        made.setdefault(origin, set()).add(cell["machine"]["date"])
    return " ".join(
        f"`{typed}` on {where}, {', '.join(sorted(dates))}{at}." for (typed, where, at), dates in made.items()
    )


def unseeded(command: str) -> str:
    """A command without the number of its seed, and without the name of its folder, where that may stand again."""
    return re.sub(r"(--seed_everything[= ])\S+", r"\g<1>SEED", re.sub(r" --experiment[= ]\S+", "", command))


def check_comparable(path: Path, recipe: str, settings: dict[str, Any], facts: dict[str, Any]) -> None:
    """Check that a mean over what is there under a recipe's name and what will be measured is one of equals.

    Args:
        path: The results.
        recipe: The name.
        settings: What defines the training, but for its seed.
        facts: The machine.

    Raises:
        ValueError: If a result of that name is from another training, or from another machine without a GPU or with
            the same one.
    """
    for cell in json.loads(path.read_text()).values() if path.exists() else ():
        if cell["recipe"] != recipe:
            continue
        pairs = [(cell["settings"][key], settings[key]) for key in settings]
        if cell["machine"]["gpu"] == facts["gpu"]:
            pairs.append((place(cell["machine"]), place(facts)))
        for older, newer in pairs:
            if older != newer:
                raise ValueError(
                    f"{path} has results of {recipe!r} from {older!r}, and these would be from {newer!r}: choose "
                    "another --output, or another name"
                )


def report(cells: dict[str, Any]) -> str:
    """All cells as Markdown."""
    parts = [REPORT]
    for name, group in recipes(cells).items():
        rows = [{"seed": str(cell["seed"]), **summary([cell]), "date": cell["machine"]["date"]} for cell in group]
        if len(group) > 1:
            rows.append({"seed": "**mean**", **summary(group)})
        views = {cell["test_views"] for cell in group if cell.get("test_accuracy_views") is not None}
        parts.append(f"## {name}\n\n{markdown_table(rows)}\n")
        parts.append("{parameters:,} parameters, {precision}, {data}.".format(**group[-1]))
        parts += [f"Views: {', '.join(sorted(views))}."] if views else []
        parts.append(f"{origins(group)}\n")
    return "\n".join(parts)


def main(arguments: list[str] | None = None) -> None:
    """Train and write seed by seed, and print all cells there are."""
    typed = sys.argv[1:] if arguments is None else arguments
    ours = typed.index("--") if "--" in typed else len(typed)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="the recipe, a file such as configs/cifar10_quick.yaml")
    parser.add_argument("--data", type=Path, help="class folders of images, instead of the data that the recipe names")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    parser.add_argument("--name", help="what to call the recipe (default: the name of its file)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args(typed[:ours])
    recipe, further = options.name or Path(options.config).stem, typed[ours + 1 :]
    path, failed = options.output / "accuracy.json", 0
    try:
        settings = {
            "config": yaml.safe_load(Path(options.config).read_text()),
            "data": options.data and options.data.name,
            "further": further,
        }
        check_comparable(path, recipe, settings, machine())
    except (OSError, ValueError) as error:
        parser.error(str(error))
    for seed in options.seeds:
        before = machine()
        try:
            results = train(f"{recipe} seed {seed}", arguments_of(options.config, options.data, seed, further))
        except TrainingError as error:
            print(f"error: {error}", file=sys.stderr)
            failed += 1
            continue
        cell = {"recipe": recipe, "settings": settings} | {key: results[key] for key in KEPT if key in results}
        write_cell(path, cell_name(cell), cell | {"machine": before, "commit": commit()}, report)
    if path.exists():
        print(path.with_suffix(".md").read_text())
    if failed:
        raise SystemExit(f"error: {failed} of {len(options.seeds)} seeds failed")


if __name__ == "__main__":
    main()
