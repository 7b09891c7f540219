"""What a map tells of a model that learned a square in place of horses, and what mends the model.

Horses and trucks of CIFAR-10 are learned from a hundred images of each. Every horse wears an orange square in one
corner, as many horses of PASCAL VOC wore the name of their photographer (Lapuschkin et al. 2019,
https://arxiv.org/abs/1902.10178). Then the model is trained again with the square on half of the horses and on half of
the trucks. Accuracy is measured on other images with and without the square. A map hits the square if its largest value
lies on it. Seeds, which were named before any run, choose the images and their order. A training is a cell, written to
shortcut.json and shortcut.md as soon as it is done; the same command continues after an interrupt. The picture is that
of the first seed.

    python benchmarks/shortcut.py --data data/cifar10-jpeg [--output benchmarks/results]

Letters in the einops patterns: b images, c channels, h w rows and columns of patches, p q pixels of a patch.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from einops import reduce
from PIL import Image
from records import command_line, made, plus_minus, provenance, write_cell
from torch import Tensor
from training_runs import check_splits, train

import vit
from vit.analysis.accuracy import accuracy
from vit.explain import explain, overlay
from vit.explain.inputs import read_images
from vit.explain.panels import Bar, Look, Panel, draw_panels
from vit.runs.folders import newest_checkpoint
from vit.support.markdown import markdown_table

SEEDS = (0, 1, 2)
CLASSES = ("horse", "truck")
COUNT = 100  # images of a class, for training and for test
METHOD = "relevance"
# Left, top, right and bottom: after crop_ratio of photos.yaml, two by two patches in the lower left corner.
SQUARE, COLOUR = (2, 23, 9, 30), (255, 140, 0)
ON_IT = 0.1  # least change of a patch by the square, relative to the largest, to count as part of it
# Which training images have the square, by class: of how many images each first.
TRAININGS = {"on every horse": {"horse": 1, "truck": 0}, "on half of both": {"horse": 2, "truck": 2}}
TESTS = {
    "square on horses": {"horse": True, "truck": False},
    "no square": {"horse": False, "truck": False},
    "square on trucks": {"horse": False, "truck": True},
}
LARGER, LOOK = 4, Look(side=2.2, letters=11, column=2.6)
REPORT = f"""# A model that learned a square in place of horses

Models learned horses and trucks from {COUNT} images of each by configs/photos.yaml, with an orange square in a corner
of every horse, or of half of the images. Accuracy in per cent on {COUNT} other images of each, mean and sample standard
deviation over seeds. "largest value on the square": of the maps by `{METHOD}` of these horses with the square.
"""


def main(arguments: list[str] | None = None) -> None:
    """Train, measure and print all cells."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/ and test/, class folders in each")
    options = parser.parse_args(arguments)
    check_splits(options.data)
    path, work = options.output / "shortcut.json", Path("runs/shortcut_data")
    for training in TRAININGS:
        for seed in SEEDS:
            name = f"{training}, seed {seed}"
            if not path.exists() or name not in json.loads(path.read_text()):
                write_cell(path, name, measured(training, seed, options.data, work), report)
    try:
        checkpoints = [checkpoint_of(training, SEEDS[0]) for training in TRAININGS]
    except ValueError as error:  # measured elsewhere
        print(f"the picture is not drawn anew: {error}", file=sys.stderr)
    else:
        draw(checkpoints, work, path.with_suffix(".png"))
    print(path.with_suffix(".md").read_text())


def experiment_of(training: str, seed: int) -> str:
    """Return the folder of a run.

    >>> experiment_of("on half of both", 1)
    'shortcut_on_half_of_both_1'
    """
    return f"shortcut_{training.replace(' ', '_')}_{seed}"


def checkpoint_of(training: str, seed: int) -> Path:
    """Return the weights of the best validation, which the run's report is about."""
    return newest_checkpoint(experiment_of(training, seed), "best")


def measured(training: str, seed: int, data: Path, work: Path) -> dict[str, Any]:
    """Train one model, and return its accuracy on each test and how many maps hit the square."""
    folder, tests = work / experiment_of(training, seed), work / str(seed)
    write_photographs(training, seed, data, folder)
    write_tests(seed, data, tests)
    typed = ["--config", "configs/photos.yaml", "--data.root", str(folder), "--seed_everything", str(seed)]
    results = train(f"{training}, seed {seed}", [*typed, "--experiment", experiment_of(training, seed)])
    kept = ("test_accuracy", "epochs", "steps", "seconds", "parameters", "precision", "command")
    model = vit.load(checkpoint_of(training, seed)).eval()
    marked, plain = (read(model, tests, CLASSES[0], square)[1] for square in (True, False))
    return {
        "squares": training,
        "seed": seed,
        "training": {name: results[name] for name in kept},
        "accuracy": {name: accuracy(model, *labelled(model, tests, squares)) for name, squares in TESTS.items()},
        "hits": share_of_hits(model, marked, plain),
        **provenance(),
    }


def write_photographs(training: str, seed: int, data: Path, folder: Path) -> None:
    """Write the images of a training and of its own test, which are alike: with the square on horses, or on half."""
    shutil.rmtree(folder, ignore_errors=True)
    for split in ("train", "test"):
        for label in CLASSES:
            every = TRAININGS[training][label]
            for number, image in enumerate(drawn(data / split / label, seed)):
                save(image, folder / split / label / f"{number:03}.png", square=bool(every) and number % every == 0)


def write_tests(seed: int, data: Path, folder: Path) -> None:
    """Write all test images twice, with the square and without it."""
    for label in CLASSES:
        for number, image in enumerate(drawn(data / "test" / label, seed)):
            for square in (True, False):
                save(image, folder / name_of(square) / label / f"{number:03}.png", square)


def drawn(folder: Path, seed: int) -> Iterator[Image.Image]:
    """Yield images of a folder, drawn at random."""
    files = sorted(folder.iterdir())
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed)).tolist()
    for index in order[:COUNT]:
        with Image.open(files[index]) as image:
            yield image.convert("RGB")


def name_of(square: bool) -> str:
    """Return the folder of images with or without the square."""
    return "square" if square else "plain"


def save(image: Image.Image, path: Path, square: bool) -> None:
    """Write an image, with the square if asked for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = image.copy()
    if square:
        image.paste(COLOUR, SQUARE)
    image.save(path)


def labelled(model: vit.VisionTransformer, tests: Path, squares: dict[str, bool]) -> tuple[Tensor, Tensor]:
    """Return normalised test images of all classes, and their labels."""
    found = [read(model, tests, label, square)[1] for label, square in squares.items()]
    names = model.pretrained_cfg["class_names"]
    labels = [torch.full([len(images)], names.index(label)) for images, label in zip(found, squares, strict=True)]
    return torch.cat(found), torch.cat(labels)


def read(model: vit.VisionTransformer, tests: Path, label: str, square: bool) -> tuple[Tensor, Tensor]:
    """Return the pixels and the normalised test images of a class, in the order of their numbers."""
    return read_images(sorted((tests / name_of(square) / label).iterdir()), model)


def share_of_hits(model: vit.VisionTransformer, marked: Tensor, plain: Tensor) -> dict[str, float]:
    """Return the share of maps of marked images whose largest value lies on the square, and that of a random place."""
    maps = explain(model, marked, METHOD, target=model.pretrained_cfg["class_names"].index(CLASSES[0]))
    on_it = patches_of_square(marked - plain, maps.shape[-2:])
    found = on_it.flatten(1).gather(1, maps.flatten(1).argmax(1, keepdim=True))
    return {METHOD: found.double().mean().item(), "chance": on_it.double().mean().item()}


def patches_of_square(difference: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return which patches the square changes: images with less images without it (B, C, H, W) -> (B, h, w)."""
    changed = reduce(difference.abs(), "b c (h p) (w q) -> b h w", "mean", h=grid[0], w=grid[1])
    return changed >= ON_IT * reduce(changed, "b h w -> b 1 1", "max")


def draw(checkpoints: list[Path], work: Path, path: Path) -> None:
    """Draw the first test horse with the square beside its map, in a row for each model."""
    rows = []
    for training, checkpoint in zip(TRAININGS, checkpoints, strict=True):
        model = vit.load(checkpoint).eval()
        pixels, images = (kind[:1] for kind in read(model, work / str(SEEDS[0]), CLASSES[0], True))
        _, without = (kind[:1] for kind in read(model, work / str(SEEDS[0]), CLASSES[0], False))
        with torch.no_grad():
            shares = model(torch.cat([images, without])).softmax(1)
        marked, plain = shares[:, model.pretrained_cfg["class_names"].index(CLASSES[0])].tolist()
        large = F.interpolate(pixels.float() / 255, scale_factor=LARGER, mode="bicubic").clamp(0, 1)
        photograph = Panel(
            large[0],
            f"horse: {100 * marked:.0f} %",
            f"trained: square {training}",
            f"horse without the square: {100 * plain:.0f} %",
        )
        rows.append(
            [photograph, Panel(overlay(large, explain(model, images, METHOD, target=CLASSES[0]))[0], "its map")]
        )
    bar = Bar(f"{METHOD} of a patch, as a share of the largest", ("0", "0.5", "1"))
    description = (
        "A horse with an orange square, and its maps by a model that learned the square and by one that did not"
    )
    draw_panels(rows, LOOK, bar=bar, description=description).save(path)


def table(cells: dict[str, Any]) -> str:
    """Return accuracy and hits of each training as Markdown."""
    rows = []
    for training in TRAININGS:
        found = [cell for cell in cells.values() if cell["squares"] == training]
        if found:
            tests = {
                f"accuracy, {name}": plus_minus([100 * cell["accuracy"][name] for cell in found], ".1f") + " %"
                for name in TESTS
            }
            hits = plus_minus([100 * cell["hits"][METHOD] for cell in found], ".0f")
            chance = plus_minus([100 * cell["hits"]["chance"] for cell in found], ".0f").split()[0]
            last = {"largest value on the square": f"{hits} % (by chance {chance} %)"}
            rows.append({"square in training": training} | tests | last)
    return markdown_table(rows, right={f"accuracy, {name}" for name in TESTS})


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    return f"{REPORT}\n{table(cells)}\n\n{made(list(cells.values())[-1])}\n"


if __name__ == "__main__":
    main()
