"""Accuracy of a recipe: mean and spread over trainings that differ in the seed.

Each seed is one `python train.py fit --config RECIPE --seed_everything SEED` in a process of its own. Its results.json
has the accuracy of the weights of the last step on test images that are read once. A cell is a recipe, a device and a
seed; it is written to accuracy.json and accuracy.md as soon as the run ends, in place of an older one. A seed that
fails is one line on stderr, and the next one starts.

    python benchmarks/accuracy.py configs/cifar10_quick.yaml --data data/cifar10-jpeg [--seeds 0 1 2] [--name NAME]
        [--output benchmarks/results] [-- further arguments for train.py]
"""

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import yaml
from records import command_line, commit, commit_of, machine, place, plus_minus, write_cell
from training_runs import TrainingError, train

from vit.support.markdown import markdown_table

KEPT = (
    *("test_accuracy", "test_accuracy_views", "test_views", "val_accuracy", "epochs", "steps", "seconds", "petaflop"),
    *("images_per_second", "parameters", "device", "precision", "seed", "data", "command"),
)
# Column of the tables: key in a cell, factor, format.
COLUMNS = {
    "test accuracy, %": ("test_accuracy", 100, ".2f"),
    "with views, %": ("test_accuracy_views", 100, ".2f"),
    "validation accuracy, %": ("val_accuracy", 100, ".2f"),
    "seconds": ("seconds", 1, ",.0f"),
    "petaFLOP": ("petaflop", 1, ".3g"),
    "epochs": ("epochs", 1, ".3g"),
    "images/s": ("images_per_second", 1, ",.0f"),
}

# A recipe may leave out what train.py has as its default: the training is the same.
TRAINER_DEFAULTS = {"gradient_clip_val": 1.0}

REPORT = """# Accuracy of whole trainings

Each seed is a training of its own. Its accuracy is that of the weights of the last step, on test images that are read
once. "With views": logits averaged over views of a test image, such as its mirror image. petaFLOP: three forward passes
of matrix products for each image seen. ± is the sample standard deviation over the seeds.
"""
# Of the rows that benchmarks/baseline.py measures.
DEFAULTS = "The defaults of timm's model and torchvision's loader with AdamW, and a learning rate chosen from three."
STRONGEST = """The strongest recipe that the parts of timm and torchvision allow for this model: patch dropping, Muon,
images decoded beforehand; benchmarks/timm_recipes.py names all of them."""


def arguments_of(config: str, data: Path | None, seed: int, further: list[str]) -> list[str]:
    """Return the arguments of `python train.py fit` for one seed."""
    images = ["--data", "ImageFolder", "--data.root", str(data)] if data else []
    return ["--config", config, "--seed_everything", str(seed), *images, *further]


def cell_name(cell: dict[str, Any]) -> str:
    """Return the name of a cell: recipe, device and seed."""
    return f"{recipe_name(cell)}, seed {cell['seed']}"


def recipe_name(cell: dict[str, Any]) -> str:
    """Return recipe and device, such as "cifar10_quick, cpu": runs on two devices are not averaged."""
    return f"{cell['recipe']}, {cell['device'].split(',')[0]}"


def recipes(cells: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the cells of each recipe, sorted by seed, by the recipe's name."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in sorted(cells.values(), key=lambda cell: cell["seed"]):
        groups.setdefault(recipe_name(cell), []).append(cell)
    return dict(sorted(groups.items()))


def with_first_stages(cells: dict[str, Any]) -> dict[str, Any]:
    """Return the cells; one that starts from another training has the seconds, petaFLOP and epochs of both."""
    whole = {}
    for name, cell in cells.items():
        model = (cell.get("settings", {}).get("config") or {}).get("model") or {}
        start = re.match(r"runs/(\w+)/", model.get("init_from") or "")
        first = cells.get(cell_name(cell | {"recipe": start[1]})) if start else None
        sums = {key: cell[key] + first[key] for key in ("seconds", "petaflop", "epochs")} if first else {}
        whole[name] = cell | sums
    return whole


def values(group: list[dict[str, Any]], key: str, scale: float = 1.0) -> list[float]:
    """Return a number of each cell that has it."""
    return [scale * cell[key] for cell in group if cell.get(key) is not None]


def mean(group: list[dict[str, Any]], key: str) -> float:
    """Return the mean of a number over cells; minus infinity where no cell has it."""
    return statistics.mean(values(group, key) or [float("-inf")])


def summary(group: list[dict[str, Any]]) -> dict[str, str]:
    """Return mean and spread of all columns over the seeds of a recipe."""
    return {title: plus_minus(values(group, key, scale), form) for title, (key, scale, form) in COLUMNS.items()}


def peer_note(group: list[dict[str, Any]]) -> str:
    """Return what a recipe of another library is, and the learning rates from which its own was chosen."""
    cell = group[0]
    if "strongest" not in cell["recipe"]:
        return DEFAULTS
    rates = ", ".join(f"{rate} ({100 * accuracy:.1f} %)" for rate, accuracy in cell.get("lr_grid", {}).items())
    chosen = f" Peak learning rate {cell['settings']['lr']:g}"
    return STRONGEST + chosen + (f", by validation accuracy the best of {rates}." if rates else ".")


def origins(group: list[dict[str, Any]]) -> str:
    """Return command, machine, dates and commit of a recipe as sentences, one for all seeds of the same command."""
    dates: dict[tuple[str, str, str], set[str]] = {}
    for cell in group:
        origin = unseeded(cell["command"]), place(cell["machine"]), commit_of(cell)
        dates.setdefault(origin, set()).add(cell["machine"]["date"])
    return " ".join(
        f"`{command}` on {where}, {', '.join(sorted(days))}, {at}." for (command, where, at), days in dates.items()
    )


def unseeded(command: str) -> str:
    """Return a command with SEED in place of its number, and without the experiment's name."""
    return re.sub(r"(--seed_everything[= ])\S+", r"\g<1>SEED", re.sub(r" --experiment[= ]\S+", "", command))


def check_comparable(path: Path, recipe: str, settings: dict[str, Any], facts: dict[str, Any]) -> None:
    """Check that the results there are under a recipe's name may be averaged with new ones.

    Args:
        path: The file of results.
        recipe: The recipe's name.
        settings: All that defines the new training, except for its seed.
        facts: The machine of the new training.

    Raises:
        ValueError: If a result of that name is from another training, or from another machine on the same device.
    """
    settings = _with_defaults(settings)
    for cell in json.loads(path.read_text()).values() if path.exists() else ():
        if cell["recipe"] != recipe:
            continue
        before = _with_defaults(cell["settings"])
        pairs = [(before[key], settings[key]) for key in settings]
        if cell["machine"]["gpu"] == facts["gpu"]:
            pairs.append((place(cell["machine"]), place(facts)))
        for older, newer in pairs:
            if older != newer:
                raise ValueError(
                    f"{path} has results of {recipe!r} from {older!r}, and these would be from {newer!r}: choose "
                    "another --output, or another name"
                )


def _with_defaults(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings with those of the trainer that a config may leave out."""
    config = settings.get("config")
    if config is None:
        return settings
    return settings | {"config": config | {"trainer": TRAINER_DEFAULTS | config.get("trainer", {})}}


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    parts = [REPORT]
    for name, group in recipes(cells).items():
        rows = [{"seed": str(cell["seed"]), **summary([cell]), "date": cell["machine"]["date"]} for cell in group]
        if len(group) > 1:
            rows.append({"seed": "**mean**", **summary(group)})
        views = {cell["test_views"] for cell in group if cell.get("test_accuracy_views") is not None}
        parts.append(f"## {name}\n\n{markdown_table(rows, right=COLUMNS)}\n")
        parts += [f"{peer_note(group)}\n"] if group[0].get("peer") else []
        parts.append("{parameters:,} parameters, {precision}, {data}.".format(**group[-1]))
        parts += [f"Views: {', '.join(sorted(views))}."] if views else []
        parts.append(f"{origins(group)}\n")
    return "\n".join(parts)


def main(arguments: list[str] | None = None) -> None:
    """Train and write seed by seed, and print all cells."""
    typed = sys.argv[1:] if arguments is None else arguments
    ours = typed.index("--") if "--" in typed else len(typed)
    parser = command_line(__doc__)
    parser.add_argument("config", help="the recipe, a file such as configs/cifar10_quick.yaml")
    parser.add_argument("--data", type=Path, help="class folders of images, instead of the recipe's data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    parser.add_argument("--name", help="name of the recipe in the results (default: that of its file)")
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
        before = {"machine": machine(), "commit": commit()}
        try:
            results = train(f"{recipe} seed {seed}", arguments_of(options.config, options.data, seed, further))
        except TrainingError as error:
            print(f"error: {error}", file=sys.stderr)
            failed += 1
            continue
        cell = {"recipe": recipe, "settings": settings} | {key: results[key] for key in KEPT if key in results}
        write_cell(path, cell_name(cell), cell | before, report)
    if path.exists():
        print(path.with_suffix(".md").read_text())
    if failed:
        raise SystemExit(f"error: {failed} of {len(options.seeds)} seeds failed")


if __name__ == "__main__":
    main()
