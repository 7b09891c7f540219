"""Evaluation of maps: on photographs by removing patches, on planted digits and mosaics by a known answer.

Scores every method of ``vit.explain`` on each trained model: on test photographs, with uniform attention in place of
the model's, and on mosaics of four photographs, once as the model is, and once after it was trained on mosaics. Models
of ``configs/planted_digits.yaml`` (a digit in clutter) and ``configs/crowded_digits.yaml`` (a digit among digits that
do not decide) are scored by where the digit is, and by the effect of noise in each token. A model is a cell, written to
explanations.json and explanations.md as soon as it is done, in place of an older one of the same recipe and seed. Plots
show the models of RECIPE and of the digits. The same command with other checkpoints adds to them; "cifar10" is the
packaged model.

    python benchmarks/explanations.py --data data/cifar10-jpeg
        --checkpoints runs/cifar10_quick/*/checkpoints/last.ckpt cifar10
        --planted runs/planted_digits/*/checkpoints/last.ckpt runs/crowded_digits/*/checkpoints/last.ckpt
        [--images 500] [--methods NAME ...] [--mosaic_steps 1000] [--output benchmarks/results]

Letter in the einops patterns: c channels.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from mosaic_training import recognised, train_on_mosaics
from records import command_line, made_at, origin, plus_minus, write_cell
from side_by_side import interleaved
from torch import Tensor
from training_runs import about_packaged, about_training

import vit
from vit.commands.photographs import read_images
from vit.data.crowded import crowded_digits
from vit.data.planted import planted_digits
from vit.data.search import search
from vit.explain import CONTROLS, METHODS, Scores, explain, localise, score
from vit.explain.evaluation.ground_truth import cells_of_boxes, cells_of_quadrants, mosaics
from vit.explain.evaluation.information_flow import follow_noise
from vit.explain.evaluation.printed_table import Interval
from vit.explain.evaluation.sanity import uniform_attention
from vit.explain.figures import draw_scores
from vit.support.markdown import markdown_table

RECIPE, PLANTED, CROWDED = "cifar10_quick", "planted_digits", "crowded_digits"
DIGITS = {PLANTED: planted_digits, CROWDED: crowded_digits}  # images, labels and boxes, by recipe
BATCH = 100
COLUMNS = ["drop", "fill", "SaCo", "positive", "negative", "Gini"]
OF_PLACES = ["hits", "energy", "IoU"]
OWN = ["mean map", "untrained"]  # controls that are made of a method itself
NOISY = 100  # images whose tokens get noise
ROUNDS = 9

Cells = dict[str, dict[str, Any]]


def photographs(folder: Path, count: int, model: vit.VisionTransformer) -> tuple[Tensor, Tensor]:
    """Return a random sample of the images in class folders, the same in each run, and their labels."""
    files = search(folder).images
    chosen = torch.randperm(len(files), generator=torch.Generator().manual_seed(0))[:count].tolist()
    if not files:
        raise ValueError(f"no images in {folder}: name a folder with train/ and test/")
    names = model.pretrained_cfg["class_names"]
    _, images = read_images([files[i] for i in chosen], model)
    return images, torch.tensor([names.index(files[i].parent.name) for i in chosen])


def rollout_cost(model: vit.VisionTransformer, images: Tensor) -> float:
    """Return the time of a batch's rollout over that of its forward pass, the median of interleaved rounds."""

    @torch.no_grad()
    def plain() -> None:
        model(images)

    calls = {"plain": plain, "rollout": lambda: explain(model, images, "rollout")}
    times = interleaved(calls, ROUNDS, 1, images.device)
    return statistics.median(rollout / plain for rollout, plain in zip(times["rollout"], times["plain"], strict=True))


@torch.no_grad()
def accuracy(model: vit.VisionTransformer, images: Tensor, labels: Tensor) -> float:
    """Return the share of the images that are classified correctly."""
    return (model(images).argmax(dim=1) == labels).double().mean().item()


def on_photographs(checkpoint: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the scores of methods on photographs and on mosaics of them, as JSON holds them."""
    model = vit.load(checkpoint)
    images, labels = photographs(options.data / "test", options.images, model)
    start = time.perf_counter()
    scores = score(model, images.split(BATCH), options.methods)
    seconds = time.perf_counter() - start
    tiled, places, _ = mosaics(images, labels, torch.Generator().manual_seed(0))
    masks = cells_of_quadrants(places, model.patch_embed.grid_size)
    measured = {
        "images": len(images),
        "accuracy": accuracy(model, images, labels),
        "seconds": seconds,
        "rollout_cost": rollout_cost(model, images[:BATCH]),
        "photographs": scores.rows,
        "recommended": scores.recommended("drop"),
        "uniform": uniform_attention(model, images, labels).rows,
        "mosaics": localise(model, tiled, labels, masks, options.methods).rows,
        "recognised": recognised(model, tiled, labels),
        "mosaic_steps": options.mosaic_steps,
    }
    if options.mosaic_steps:
        images_to_train_on = photographs(options.data / "train", sys.maxsize, model)
        trained = train_on_mosaics(model, *images_to_train_on, options.mosaic_steps)
        measured["trained on mosaics"] = localise(trained, tiled, labels, masks, options.methods).rows
        measured["recognised after training"] = recognised(trained, tiled, labels)
    return measured


def on_digits(checkpoint: Path, recipe: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the scores of methods on digits at a known place, as JSON holds them."""
    model = vit.load(checkpoint)
    pixels, digits, boxes = (part[: options.images] for part in DIGITS[recipe]("test"))
    mean, std = (rearrange(torch.tensor(model.pretrained_cfg[name]), "c -> c 1 1") for name in ("mean", "std"))
    images = (pixels / 255 - mean) / std
    masks = cells_of_boxes(boxes, pixels.shape[-2:], model.patch_embed.grid_size)
    found = localise(model, images, digits, masks, options.methods)
    recommended = found.recommended("hits")
    return {
        "images": len(images),
        "accuracy": accuracy(model, images, digits),
        "planted": found.rows,
        "recommended": recommended,
        "flow": follow_noise(model, images[:NOISY]).rows,
    }


def of_recipe(cells: Cells, recipe: str) -> list[dict[str, Any]]:
    """Return the cells of a recipe, sorted by seed."""
    return sorted((cell for cell in cells.values() if cell["recipe"] == recipe), key=lambda cell: cell["seed"])


def means(cells: Iterable[dict[str, Any]], part: str, measure: str) -> dict[str, list[float]]:
    """Return a measure of each method, a mean over images for each training."""
    found: dict[str, list[float]] = {}
    for cell in cells:
        for row in cell[part]:
            number = row.get(measure)
            if number is not None:
                found.setdefault(row["method"], []).append(number[0] if isinstance(number, Sequence) else number)
    return found


def table_of(cells: Sequence[dict[str, Any]], part: str, measures: Sequence[str]) -> str:
    """Return measures over trainings as Markdown, sorted by the first, the highest value on top."""
    found = {measure: means(cells, part, measure) for measure in measures}
    order = sorted(found[measures[0]], key=lambda method: -statistics.mean(found[measures[0]][method]))
    measures = [measure for measure in measures if found[measure]]
    rows = [
        {"method": method} | {name: plus_minus(found[name].get(method, []), ".3f") for name in measures}
        for method in order
    ]
    return markdown_table(rows, right=measures)


def both_designs(cells: Cells) -> list[str]:
    """Return the hits of every method in both designs of digits at a known place, if there are both."""
    found = {recipe: means(of_recipe(cells, recipe), "planted", "hits") for recipe in DIGITS}
    if not all(found.values()):
        return []
    columns = {PLANTED: "a digit in clutter", CROWDED: "a digit among digits that do not decide"}
    order = sorted(found[CROWDED], key=lambda method: (method in CONTROLS, -statistics.mean(found[CROWDED][method])))
    rows = [
        {"method": f"{method} (control)" if method in CONTROLS else method}
        | {columns[recipe]: plus_minus(found[recipe].get(method, []), ".3f") for recipe in DIGITS}
        for method in order
    ]
    note = "Share of images whose highest patch lies on the digit that decides. Chance is 0.062 in both."
    return ["## Two designs of a known answer", note, markdown_table(rows, right=[*columns.values()])]


def report(cells: Cells) -> str:
    """Return the results as Markdown, a section for each recipe."""
    parts = [
        "# Evaluation of maps",
        "Numbers are means over images; with several trainings, mean and sample standard deviation of their means. The "
        "columns *mean map* and *untrained* are controls made of the method itself, scored as the first column is: the "
        "mean of its maps of other images, and its maps of untrained models.",
        *both_designs(cells),
    ]
    for recipe in sorted({cell["recipe"] for cell in cells.values()}):
        group = of_recipe(cells, recipe)
        parts += [f"## {recipe}", described(group)]
        if "planted" in group[0]:
            parts += ["Each map is that of the true class.", table_of(group, "planted", [*OF_PLACES, *OWN])]
            if flowing := [cell for cell in group if "flow" in cell]:
                note = f"Rank correlation with the effect of noise in each token on the class token, {NOISY} images."
                parts += ["### Where information flows", note, table_of(flowing, "flow", ["flow"])]
            continue
        cost = plus_minus([cell["rollout_cost"] for cell in group], ".2f")
        parts += [
            f"Rollout takes {cost} times a plain forward pass of {BATCH} images.",
            table_of(group, "photographs", [*COLUMNS, *OWN, "ms", "MB"]),
            "### Uniform attention in place of the model's",
            uniform_table(group),
            "### Mosaics of four photographs",
            "The photographs are halved in size, and each map is that of one photograph's class: a quarter of the "
            "mosaic is inside.",
            table_of(group, "mosaics", [*OF_PLACES, *OWN]),
        ]
        if trained := [cell for cell in group if "trained on mosaics" in cell]:
            parts += ["### The same mosaics, after training on mosaics", after_training(trained)]
    return "\n\n".join(parts) + "\n"


def after_training(group: Sequence[dict[str, Any]]) -> str:
    """Return what training on mosaics changes."""
    before, after = (
        plus_minus([100 * cell[name] for cell in group], ".1f") for name in ("recognised", "recognised after training")
    )
    return (
        f"The asked class is among the four highest logits in {before} % of the mosaics, and after "
        f"{group[0]['mosaic_steps']:,} steps on mosaics of training images in {after} %.\n\n"
        f"{table_of(group, 'trained on mosaics', [*OF_PLACES, *OWN])}"
    )


def described(group: Sequence[dict[str, Any]]) -> str:
    """Return what the cells of a recipe were measured on, in sentences."""
    seeds = ", ".join(str(cell["seed"]) for cell in group)
    right = plus_minus([100 * cell["accuracy"] for cell in group], ".1f")
    lines = [f"Seeds {seeds}; {group[0]['images']} test images, {right} % classified correctly."]
    lines += [
        f"Recommended under seed {cell['seed']}: {', '.join(cell['recommended']) or 'none'}. {made_at(cell['made'])}"
        for cell in group
    ]
    return "\n\n".join(lines)


def uniform_table(group: Sequence[dict[str, Any]]) -> str:
    """Return what uniform attention changes, a row for each replacement of whole layers."""
    rows = []
    for number, row in enumerate(group[0]["uniform"]):
        if row["heads"] == "all":
            same = [cell["uniform"][number] for cell in group]
            flips = plus_minus([100 * other["flips"] for other in same], ".1f")
            lost = plus_minus([100 * other["accuracy_change"] for other in same], "+.1f")
            rows.append({"layers": row["layers"], "predictions changed, %": flips, "points of accuracy": lost})
    return markdown_table(rows, right=["predictions changed, %", "points of accuracy"])


def spread(cells: Sequence[dict[str, Any]], part: str, measure: str, title: str) -> Scores:
    """Return a measure of all methods with the lowest and the highest of the trainings in place of an interval."""
    found = means(cells, part, measure)
    rows = [
        {"method": method, measure: Interval(statistics.mean(numbers), min(numbers), max(numbers))}
        for method, numbers in found.items()
    ]
    return Scores(rows, f"{title}\nMean, lowest and highest of {len(cells)} trainings")


def draw(cells: Cells, path: Path) -> None:
    """Draw the plots beside the file of results."""
    plots = (
        (RECIPE, "photographs", "drop", "drop", "Removal area of each map, photographs of CIFAR-10"),
        (PLANTED, "planted", "hits", "hits", "Highest patch on the digit, in clutter"),
        (CROWDED, "planted", "hits", "crowd", "Highest patch on the deciding digit, among fifteen others"),
    )
    for recipe, part, measure, name, title in plots:
        if group := of_recipe(cells, recipe):
            draw_scores(spread(group, part, measure, title), measure, path.with_name(f"{path.stem}_{name}.png"))


def main(arguments: list[str] | None = None) -> None:
    """Measure model by model, write and print."""
    parser = command_line(__doc__)
    add = parser.add_argument
    add("--data", type=Path, help="folder with train/ and test/, class folders of images in each; for --checkpoints")
    add("--checkpoints", nargs="*", default=[], metavar="FILE", help="of models trained on such images")
    add("--planted", type=Path, nargs="*", default=[], metavar="FILE", help="of models of the two digit recipes")
    add("--images", type=int, default=500, help="photographs, and images of digits (default: 500)")
    add("--methods", nargs="+", choices=[*METHODS], metavar="NAME", help="scored methods (default: all)")
    add("--mosaic_steps", type=int, default=1000, help="steps of 128 mosaics to train on, 0 for none (default: 1000)")
    options = parser.parse_args(arguments)
    if options.checkpoints and options.data is None:
        parser.error("--checkpoints are scored on photographs: name their folder with --data")
    path = options.output / "explanations.json"
    try:
        trainings = {
            checkpoint: about_packaged() if checkpoint == "cifar10" else about_training(Path(checkpoint))
            for checkpoint in (*options.checkpoints, *options.planted)
        }
    except ValueError as error:
        parser.error(str(error))
    for checkpoint in options.planted:
        if trainings[checkpoint]["recipe"] not in DIGITS:
            recipe = trainings[checkpoint]["recipe"]
            parser.error(f"{checkpoint} is of the recipe {recipe}: give --planted models of {' or '.join(DIGITS)}")
    for checkpoint, training in trainings.items():
        recipe, seed = training["recipe"], training["seed"]
        about = {"recipe": recipe, "seed": seed, "training": training, "made": origin()}
        if checkpoint in options.planted:
            measured = on_digits(checkpoint, recipe, options)
        else:
            measured = on_photographs(checkpoint, options)
        write_cell(path, f"{recipe}, seed {seed}", about | measured, report)
    cells = json.loads(path.read_text())
    draw(cells, path)
    print(report(cells))


if __name__ == "__main__":
    main()
