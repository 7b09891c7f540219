"""Fine-tuning on few images: from weights that were trained on other classes, and from scratch.

A model is trained on five classes of CIFAR-10. The other five are then learned from few images of each, from these
weights and from scratch, with the same images. Seeds, which were named before any run, choose the images and their
order; accuracy is that of the end of the training, on all test images of these five classes. A training is a cell,
written to finetune.json and finetune.md as soon as it is done; the same command continues after an interrupt.

    python benchmarks/finetune.py --data data/cifar10-jpeg [--output benchmarks/results]
"""

import json
import shutil
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from records import command_line, made, plus_minus, provenance, write_cell
from training_runs import TrainingError, check_splits, train

import vit
from vit.runs.folders import newest_checkpoint
from vit.support.markdown import markdown_table

SEEDS = (0, 1, 2)
COUNTS = (20, 100)  # images of a class
PRETRAINED_ON = ("airplane", "automobile", "bird", "cat", "deer")
LEARNED = ("dog", "frog", "horse", "ship", "truck")
PRETRAINING = ["--config", "configs/cifar10_quick.yaml", "--experiment", "finetune_source", "--seed_everything", "0"]
FINETUNING = ["--config", "configs/finetune.yaml", "--data.val_fraction", "0"]
# The architecture of the source.
SHAPE = ["--model.patch_size", "4", "--model.embed_dim", "96", "--model.depth", "6", "--model.num_heads", "3"]
SHAPE += ["--model.mlp_ratio", "2", "--model.pool", "cls+mean"]
EPOCHS = {20: "100", 100: "40"}
ROWS = {
    "fine-tuned": FINETUNING,
    "fine-tuned, 3 of 6 blocks frozen": [*FINETUNING, "--model.freeze", "3"],
    "linear probe": [*FINETUNING, "--model.freeze", "6", "--model.lr", "3e-3"],
    "from scratch, same recipe": [*FINETUNING, "--model.init_from", "null", "--model.layer_decay", "null", *SHAPE],
    "from scratch, photos.yaml": ["--config", "configs/photos.yaml", "--data.image_size", "32", *SHAPE[:2]],
}
REPORT = """# Fine-tuning on few images

A model of 96 channels and 6 blocks learned five classes of CIFAR-10 for ten minutes, then the other five from few
images of each; others learned these from scratch. Accuracy on the 5,000 test images of these five classes, mean and
sample standard deviation over three draws of the images. "Gain": points above the better training from scratch with the
same images, with a 95 % interval of Student's t.
"""
T_95 = 4.303  # Student's t of 2 degrees of freedom


def main(arguments: list[str] | None = None) -> None:
    """Train row by row, and print all cells."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/ and test/, class folders in each")
    options = parser.parse_args(arguments)
    check_splits(options.data)
    path, work = options.output / "finetune.json", Path("runs/finetune_data")
    source = pretrained(options.data, work)
    failed = 0
    for count in COUNTS:
        for seed in SEEDS:
            folder = linked(options.data, work / f"{count}_{seed}", LEARNED, count, seed)
            for row in ROWS:
                name = f"{row}, {count} images of a class, seed {seed}"
                if path.exists() and name in json.loads(path.read_text()):
                    continue
                try:
                    cell = measured(row, source, folder, count, seed)
                except TrainingError as error:
                    print(f"error: {error}", file=sys.stderr)
                    failed += 1
                    continue
                write_cell(path, name, cell, report)
    print(path.with_suffix(".md").read_text())
    if failed:
        raise SystemExit(f"error: {failed} trainings failed")


def pretrained(data: Path, work: Path) -> Path:
    """Return the checkpoint of the model that was trained on the first five classes; an interrupted one goes on."""
    folder = linked(data, work / "source", PRETRAINED_ON)
    try:
        found = newest_checkpoint("finetune_source", "last")
        if json.loads((found.parents[1] / "results.json").read_text()).get("finished"):
            return found
        train("five classes", ["--ckpt_path", str(found)])
    except ValueError:  # there is none
        train("five classes", [*PRETRAINING, "--data", "ImageFolder", "--data.root", str(folder)])
    return newest_checkpoint("finetune_source", "last")


def linked(data: Path, folder: Path, classes: tuple[str, ...], count: int | None = None, seed: int = 0) -> Path:
    """Return a folder of links: to ``count`` training images of each class, drawn at random, and to all test images."""
    if folder.exists():
        return folder
    unfinished = folder.with_name(f"{folder.name}_unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for name in classes:
        files = sorted((data / "train" / name).iterdir())
        order = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed)).tolist()
        chosen = {"train": [files[index] for index in order[:count]], "test": (data / "test" / name).iterdir()}
        for split, images in chosen.items():
            (unfinished / split / name).mkdir(parents=True)
            for image in images:
                (unfinished / split / name / image.name).symlink_to(image.resolve())
    return unfinished.rename(folder)


def arguments_of(row: str, source: Path, folder: Path, count: int, seed: int) -> list[str]:
    """Return the arguments of `python train.py fit` for one training."""
    typed = [*ROWS[row], "--data.root", str(folder), "--seed_everything", str(seed)]
    typed += ["--experiment", f"finetune_{[*ROWS].index(row)}_{count}_{seed}"]
    if "photos" not in row:  # which stops by itself
        typed += ["--trainer.max_epochs", EPOCHS[count]]
    return typed if "scratch" in row else [*typed, "--model.init_from", str(source)]


def measured(row: str, source: Path, folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Return the accuracy of one training, and whether the frozen blocks are as they were."""
    typed = arguments_of(row, source, folder, count, seed)
    results = train(f"{row}, {count} images, seed {seed}", typed)
    kept = ("test_accuracy", "epochs", "steps", "seconds", "parameters", "precision", "command")
    cell = {
        "row": row,
        "count": count,
        "seed": seed,
        "training": {name: results[name] for name in kept},
        **provenance(),
    }
    if "--model.freeze" in typed:
        tuned = vit.load(newest_checkpoint(typed[typed.index("--experiment") + 1], "last"))
        cell["frozen_as_before"] = same_blocks(vit.load(source), tuned, typed[typed.index("--model.freeze") + 1])
    return cell


def same_blocks(source: vit.VisionTransformer, tuned: vit.VisionTransformer, count: str) -> bool:
    """Return whether the first blocks of two models are equal bit for bit."""
    pairs = zip(source.blocks[: int(count)].parameters(), tuned.blocks[: int(count)].parameters(), strict=True)
    return all(torch.equal(before, after) for before, after in pairs)


def table(cells: dict[str, Any]) -> str:
    """Return accuracy and gain of each row as Markdown."""
    rows = []
    for name in ROWS:
        of_row = {(cell["count"], cell["seed"]): cell for cell in cells.values() if cell["row"] == name}
        columns = {"training": name}
        for count in COUNTS:
            found = {
                seed: 100 * cell["training"]["test_accuracy"]
                for (number, seed), cell in of_row.items()
                if number == count
            }
            scratch = {seed: scratch_of(cells, count, seed) for seed in found}
            gains = [value - scratch[seed] for seed, value in found.items() if scratch[seed] is not None]
            columns[f"accuracy, {count} images of a class, %"] = plus_minus(list(found.values()), ".1f")
            columns[f"gain, {count} images, points"] = "" if "scratch" in name else interval(gains)
        rows.append(columns)
    return markdown_table(rows)


def scratch_of(cells: dict[str, Any], count: int, seed: int) -> float | None:
    """Return the better of the accuracies from scratch with the same images."""
    found = [
        100 * cell["training"]["test_accuracy"]
        for cell in cells.values()
        if "scratch" in cell["row"] and (cell["count"], cell["seed"]) == (count, seed)
    ]
    return max(found, default=None)


def interval(gains: list[float]) -> str:
    """Return mean and 95 % interval of three differences as text.

    >>> interval([1.0, 2.0, 3.0])
    '+2.0 (-0.5 to +4.5)'
    """
    if len(gains) < len(SEEDS):
        return ""
    half = T_95 * stdev(gains) / len(gains) ** 0.5
    return f"{mean(gains):+.1f} ({mean(gains) - half:+.1f} to {mean(gains) + half:+.1f})"


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    frozen = [cell["frozen_as_before"] for cell in cells.values() if "frozen_as_before" in cell]
    note = (
        f"Frozen blocks were bit for bit as before in {sum(frozen)} of {len(frozen)} trainings.\n\n" if frozen else ""
    )
    return f"{REPORT}\n{table(cells)}\n\n{note}{made(list(cells.values())[-1])}\n"


if __name__ == "__main__":
    main()
