"""Baselines of the ten-minute recipe: as many minutes for timm's Vision Transformer, by timm's and torchvision's parts.

The model has the size of configs/cifar10_quick.yaml (96 channels, 6 blocks). There are two recipes, which
timm_recipes.py explains: "defaults", and "strongest", the best that the parts of these libraries allow. Both have a
schedule that the clock drives to zero, label smoothing, clipped gradients, and bfloat16 where the hardware is faster
with it. timm's fused attention is off where its backward pass is slower, in bfloat16 on CPUs. The strongest recipe is
compiled by torch.compile as ours is, as a whole, while the clock runs; its process keeps the memory that it frees, as
ours does.

As in our recipe, 4 % of each class of DATA/train are held out. There is no validation between epochs, so that a little
more time is left to train. The clock starts with the request for the first batch. The images of DATA/test are read
once, at the end. Cells go to accuracy.json, beside those of accuracy.py, as soon as a seed is done; a seed of this
commit that is there is not trained again.

    python benchmarks/baseline.py --data data/cifar10-jpeg [--recipe defaults|strongest] [--minutes 10] [--lr RATE]
        [--seeds 0 1 2] [--output benchmarks/results]
    python benchmarks/baseline.py --data data/cifar10-jpeg --recipe strongest --lr-grid 1e-3 2e-3 4e-3 8e-3

With --lr-grid each rate is a training of seed 0 in which 10 % are held out: 5,000 images of CIFAR-10, whose accuracy
goes to baseline_grid.json. No test image is read. The strongest recipe takes the best rate of a grid of equal length,
which must not be the lowest or the highest. The defaults have the best of 1e-3, 2e-3 and 4e-3 on the validation images
after 3 minutes (--minutes 3 --seeds 0 --lr RATE, 2026-11-21).
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from accuracy import cell_name, check_comparable, origins, report
from records import command_line, is_measured, machine, provenance, write_cell
from side_by_side import DEVICE, autocast
from timm_recipes import RECIPES, Recipe
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache
from torch.utils.data import DataLoader, Dataset

from vit.commands.training_cli import fastest_precision
from vit.support.kept_memory import keep_freed_memory
from vit.support.markdown import markdown_table
from vit.training.flop import forward_flop

BATCH = 128
VAL_FRACTION, GRID_VAL_FRACTION = 0.04, 0.1
LABEL_SMOOTHING, CLIP = 0.1, 1.0
RATE = 1e-3  # of the defaults

GRID_REPORT = """# Learning rates of the baselines

Each rate is a short training of seed 0, with 10 % of each class of the training images held out; no test image is read.
"""


def make_model(recipe: Recipe, dtype: torch.dtype) -> nn.Module:
    """Return the model of a recipe with its fastest attention."""
    model = recipe.make_model()
    if DEVICE.type == "cpu" and dtype == torch.bfloat16:
        for block in model.blocks:
            block.attn.fused_attn = False
    return model.to(DEVICE)


def epochs(train: Dataset, recipe: Recipe) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches on the device, epoch after epoch."""
    loader = DataLoader(
        train,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=recipe.workers,
        persistent_workers=recipe.workers > 0,
        pin_memory=DEVICE.type == "cuda",
    )
    for _ in itertools.count():
        for images, labels in loader:
            yield recipe.finish(images.to(DEVICE, non_blocking=True)), labels.to(DEVICE, non_blocking=True)


def train(
    model: nn.Module, images: Dataset, seconds: float, dtype: torch.dtype, rate: float, recipe: Recipe
) -> dict[str, Any]:
    """Train for some seconds with a peak learning rate, and return epochs, steps and speed."""
    optimizer = recipe.make_optimizer(model, rate)
    schedule = recipe.make_schedule(model, optimizer)
    model.train()
    one, flop_at = torch.zeros(1, 3, 32, 32, device=DEVICE), {}
    start, seen, flop = time.monotonic(), 0, 0
    for steps, (batch, labels) in enumerate(epochs(images, recipe), start=1):
        progress = min(1.0, (time.monotonic() - start) / seconds)
        schedule(progress)
        with autocast(DEVICE, dtype):
            loss = F.cross_entropy(model(batch).float(), labels, label_smoothing=LABEL_SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        seen += len(batch)
        dropped = recipe.dropped(model)
        if dropped not in flop_at:
            flop_at[dropped] = 3 * forward_flop(model, one)
        flop += len(batch) * flop_at[dropped]
        if steps % 100 == 0:
            print(f"step {steps:,}, loss {loss.item():.3f}, {progress:.0%} of the time", file=sys.stderr)
        if time.monotonic() - start >= seconds:
            break
    passed = time.monotonic() - start
    return {
        "epochs": round(seen / len(images), 2),
        "steps": steps,
        "seconds": round(passed, 1),
        "petaflop": float(f"{flop / 1e15:.3g}"),
        "images_per_second": round(seen / passed, 1),
    }


@torch.compiler.set_stance("force_eager")
@torch.no_grad()
def accuracies(model: nn.Module, images: Dataset, dtype: torch.dtype, recipe: Recipe) -> tuple[float, float]:
    """Return the accuracy on images, and that of logits averaged over images and their mirror images."""
    model.eval()
    correct = torch.zeros(2, dtype=torch.long, device=DEVICE)
    for batch, labels in DataLoader(images, batch_size=512, num_workers=recipe.workers):
        views = recipe.finish(batch.to(DEVICE))
        with autocast(DEVICE, dtype):
            logits, mirrored = (model(view).float() for view in (views, views.flip(-1)))
        guesses = torch.stack([logits, logits + mirrored]).argmax(dim=-1)
        correct += (guesses == labels.to(DEVICE)).sum(dim=-1)
    alone, both = (correct / len(images)).tolist()
    return alone, both


def measure(
    sets: dict[str, Dataset],
    recipe: Recipe,
    minutes: float,
    rate: float,
    seed: int,
    parts: tuple[str, ...],
) -> dict[str, Any]:
    """Train from a seed, score parts of the images ("val", "test"), and return the numbers."""
    torch.manual_seed(seed)
    precision = fastest_precision("auto")
    dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float32
    model = make_model(recipe, dtype)
    is_strongest = recipe is RECIPES["strongest"]
    if is_strongest:
        keep_freed_memory()
        model.compile(dynamic=False)
    with fresh_cache():  # torch.compile starts without programs of earlier runs
        trained = train(model, sets["train"], 60 * minutes, dtype, rate, recipe)
    scores: dict[str, Any] = {}
    for part in parts:
        scores[f"{part}_accuracy"], both = accuracies(model, sets[part], dtype, recipe)
        if part == "test":
            scores |= {"test_accuracy_views": both, "test_views": "flip"}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    facts = {"parameters": parameters, "precision": precision, "compiled": is_strongest, "seed": seed}
    return scores | trained | facts


def grid_report(cells: dict[str, Any]) -> str:
    """Return all learning rates as Markdown."""
    parts = [GRID_REPORT]
    for name in dict.fromkeys(cell["recipe"] for cell in cells.values()):
        group = sorted((cell for cell in cells.values() if cell["recipe"] == name), key=lambda cell: cell["lr"])
        rows = [
            {
                "peak learning rate": f"{cell['lr']:g}",
                "validation accuracy, %": f"{100 * cell['val_accuracy']:.2f}",
                "images": f"{cell['val_images']:,}",
                "minutes": f"{cell['minutes']:g}",
                "epochs": f"{cell['epochs']:.3g}",
            }
            for cell in group
        ]
        parts.append(f"## {name}\n\n{markdown_table(rows, right=[*rows[0]])}\n\n{origins(group)}\n")
    return "\n".join(parts)


def best_of_grid(path: Path, recipe: Recipe, minutes: float) -> tuple[float, dict[str, float]]:
    """Return a recipe's best learning rate after some minutes on this kind of device, and the accuracy of each rate.

    Raises:
        ValueError: If there is no grid, or its best rate is the lowest or the highest.
    """
    cells = json.loads(path.read_text()).values() if path.exists() else ()
    asked = (recipe.name, minutes, machine()["gpu"])
    mine = [cell for cell in cells if (cell["recipe"], cell["minutes"], cell["machine"]["gpu"]) == asked]
    grid = {cell["lr"]: cell["val_accuracy"] for cell in sorted(mine, key=lambda cell: cell["lr"])}
    if not grid:
        raise ValueError(
            f"{path} has no rate of {recipe.name!r} in {minutes:g} min: measure some with --lr-grid, or give --lr"
        )
    best = max(grid, key=grid.__getitem__)
    if best in (min(grid), max(grid)):
        raise ValueError(f"{best:g} is the best and the last of the rates in {path}: measure one beyond it (--lr-grid)")
    return best, {f"{rate:g}": accuracy for rate, accuracy in grid.items()}


def measure_grid(options: argparse.Namespace, recipe: Recipe) -> Path:
    """Train once for each learning rate, and return the file of the grid."""
    path = options.output / "baseline_grid.json"
    sets = recipe.image_sets(options.data, GRID_VAL_FRACTION)
    for rate in options.lr_grid:
        at = provenance()
        name = f"{recipe.name}, {options.minutes:g} min, lr {rate:g}, {at['machine']['gpu'] or DEVICE.type}"
        if is_measured(path, name):
            continue
        cell = {"recipe": recipe.name, "lr": rate, "minutes": options.minutes, "val_images": len(sets["val"])}
        write_cell(
            path,
            name,
            cell | measure(sets, recipe, options.minutes, rate, 0, ("val",)) | at,
            grid_report,
        )
    return path


def measure_seeds(options: argparse.Namespace, recipe: Recipe) -> Path:
    """Train and test seed by seed, and return the file of results.

    Raises:
        ValueError: If the file holds other trainings of that name, or no learning rate is known.
    """
    path, name = options.output / "accuracy.json", f"{recipe.name}, {options.minutes:g} min"
    rate, grid = options.lr, {}
    if rate is None and recipe is RECIPES["defaults"]:
        rate = RATE
    elif rate is None:
        rate, grid = best_of_grid(options.output / "baseline_grid.json", recipe, options.minutes)
    settings = {"data": options.data.name, "lr": rate}
    check_comparable(path, name, settings, machine())
    cells = {}
    for seed in options.seeds:
        at = provenance()
        device = at["machine"]["gpu"] or f"{DEVICE.type}, {at['machine']['threads']} threads"
        cells[seed] = {"recipe": name, "peer": True, "settings": settings, "device": device, "seed": seed} | at
    left = {seed: cell for seed, cell in cells.items() if not is_measured(path, cell_name(cell))}
    sets = recipe.image_sets(options.data, VAL_FRACTION) if left else {}
    for seed, cell in left.items():
        cell |= {"data": f"ImageFolder {options.data}"} | ({"lr_grid": grid} if grid else {})
        cell |= measure(sets, recipe, options.minutes, rate, seed, ("val", "test"))
        write_cell(path, cell_name(cell), cell, report)
    return path


def main(arguments: list[str] | None = None) -> None:
    """Train and write seed by seed or rate by rate, and print all cells."""
    parser = command_line(__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with train/CLASS/*.jpg and test/CLASS/*.jpg")
    add("--recipe", choices=RECIPES, default="defaults", help="(default: defaults)")
    add("--minutes", type=float, default=10.0, help="minutes of training (default: 10)")
    add("--lr", type=float, help="peak learning rate (default: 0.001, or the best of the grid for the strongest)")
    add("--lr-grid", type=float, nargs="+", metavar="RATE", help="measure these peak learning rates instead")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    options = parser.parse_args(arguments)
    if missing := [part for part in ("train", "test") if not (options.data / part).is_dir()]:
        parser.error(f"no folder {options.data / missing[0]}: --data names a folder with train/ and test/ in it")
    if not all(number > 0 for number in (options.minutes, *(options.lr_grid or ()), options.lr or 1)):
        parser.error("minutes and learning rates must be above 0")
    try:
        path = (measure_grid if options.lr_grid else measure_seeds)(options, RECIPES[options.recipe])
    except ValueError as error:
        parser.error(str(error))
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
