"""Claims about attention beside its rivals, convolution and recurrence, on CIFAR-10.

Each mechanism trains for the same time on one thread: a slower one takes fewer steps. The number of parameters that the
logits depend on is the same, as in claims_rivals.py. The recipe is configs/cifar10_quick.yaml without what some
mechanism cannot do: patches are not dropped, the model has no class token, and weights start by Glorot. The learning
rate, and the kernel of the convolution, are chosen for each mechanism on validation images and by a seed of their own;
accuracies are those of test images. Seeds change the training, and not the subset of the images.
"""

import statistics
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from claims_rivals import COLORS, accuracies, compared
from claims_training import answer, percent, points
from training_runs import train

from vit.support.markdown import markdown_table

CONFIG = "configs/cifar10_quick.yaml"
IMAGES, BATCH = 50_000, 128  # training images of CIFAR-10, and of a step
SECONDS = {1000: 60, 7000: 150, 45_000: 300}  # of a training on one thread, by its number of images
FEW, ALL = min(SECONDS), max(SECONDS)
# Images a second of a training step on one thread with AVX512-BF16: medians of 15 interleaved steps of all.
SPEED = {"softmax": 590, "convolution 3": 650, "convolution 5": 440, "recurrent": 430, "uniform": 515}
MODEL = {"embed_dim": 108, "num_heads": 9, "class_token": "false", "patch_drop": 0, "patch_drop_until": 1}
MODEL |= {"init": "glorot", "compile": "false", "test_views": "none"}
MLP_RATIO = {"softmax": 2.0, "convolution": 3.0, "recurrent": 2.5, "uniform": 3.0}
KERNELS = (3, 5)
MIDDLE_RATE = 3e-3  # where the search for a learning rate begins
CHOICE_SEED, CHOICE_SECONDS = 3, 150
SETTINGS: dict[str, dict[str, Any]] = {
    f"{name}, {size:,} images": {"attention": name, "size": size} for size in SECONDS for name in COLORS
}


def check_images(folder: Path) -> None:
    """Check that a folder has the training images of CIFAR-10, of which the settings take shares.

    Raises:
        ValueError: If it has another number of them.
    """
    count = sum(1 for _ in folder.glob("train/*/*"))
    if count != IMAGES:
        raise ValueError(
            f"{folder} has {count:,} files in train/CLASS/, and CIFAR-10 has {IMAGES:,} training images: give the "
            "folder of train/ and test/"
        )


def measure(setting: dict[str, Any], seed: int, data: Path) -> dict[str, Any]:
    """Train a model on a subset of the images, and return its test accuracy, its options and its training."""
    name, size = setting["attention"], setting["size"]
    choice = chosen(name, data)
    not_validated = ["--trainer.limit_val_batches", "0"]
    results = run(name, size, seed, data, SECONDS[size], choice["lr"], choice["kernel"], not_validated)
    kept = {key: results[key] for key in ("steps", "parameters", "images_per_second")}
    return {"accuracy": results["test_accuracy"], "training": {"command": results["command"]}} | kept | choice


@cache
def chosen(name: str, data: Path) -> dict[str, Any]:
    """Return learning rate and kernel of a mechanism with the best validation accuracy, and all that were tried."""
    tried: dict[tuple[float, int | None], float] = {}

    def score(lr: float, kernel: int | None) -> float:
        if (lr, kernel) not in tried:
            not_tested = ["--trainer.limit_test_batches", "0"]
            results = run(name, ALL, CHOICE_SEED, data, CHOICE_SECONDS, lr, kernel, not_tested)
            tried[lr, kernel] = results["val_accuracy"]
        return tried[lr, kernel]

    kernel = max(KERNELS, key=lambda kernel: score(MIDDLE_RATE, kernel)) if name == "convolution" else None
    lr = highest(lambda lr: score(lr, kernel), MIDDLE_RATE)
    shown = {f"lr {lr:g}" + (f", kernel {kernel}" if kernel else ""): value for (lr, kernel), value in tried.items()}
    return {"lr": lr, "kernel": kernel, "validation": shown}


def highest(score: Callable[[float], float], start: float) -> float:
    """Return the rate whose score is at least that of half and of twice it, climbed to from a start.

    >>> highest(lambda rate: -abs(rate - 8), 1.0)
    8.0
    """
    best = start
    while (better := max((best, best / 2, 2 * best), key=score)) != best:
        best = better
    return best


def run(
    name: str, size: int, seed: int, data: Path, seconds: int, lr: float, kernel: int | None, limits: list[str]
) -> dict[str, Any]:
    """Train a mechanism by the command line, on one thread, for as many steps as it takes in some seconds."""
    options = MODEL | {"attention": name, "mlp_ratio": MLP_RATIO[name], "lr": lr}
    options |= {"attention_kwargs.kernel": kernel} if kernel else {}
    steps = round(seconds * SPEED[f"{name} {kernel}" if kernel else name] / BATCH)
    typed = ["--config", CONFIG, "--seed_everything", str(seed), "--data", "ImageFolder", "--data.root", str(data)]
    typed += ["--data.val_fraction", f"{1 - size / IMAGES:g}", "--experiment", f"claims_{name}_{size}_{seed}_{lr:g}"]
    typed += ["--trainer.max_time", "null", "--trainer.max_epochs=-1", "--trainer.max_steps", str(steps)]
    typed += [f"--model.{key}={value}" for key, value in options.items()]
    return train(f"{name}, {size:,} images, seed {seed}, lr {lr:g}", [*typed, *limits], threads=1)


def rows(cells: dict[str, Any]) -> list[dict[str, str]]:
    """Return the sentences about few and enough images with their answers."""
    found = compared(cells, (FEW,), ALL)
    if found is None:
        return []
    uniform, recurrent, softmax = (percent(found.many[name]) for name in ("uniform", "recurrent", "softmax"))
    source = {"source": "Dosovitskiy et al. 2021, sec. 4.3"}
    return [
        {
            "sentence": "On photographs, convolution leads attention most when images are few",
            "measured": f"lead of convolution over softmax, {FEW:,} images minus {ALL:,}: {points(found.shrinking)}",
            "control": f"the lead with {FEW:,} images: {points(found.at_first)}; {found.others_at_first}",
            "answer": answer(found.shrinking),
        }
        | source,
        {
            "sentence": "On photographs, attention does better than convolution once there are enough (here 45,000)",
            "measured": f"softmax minus convolution, {ALL:,} images: {points(found.at_last)}",
            "control": f"uniform: {uniform}; recurrent: {recurrent}; softmax: {softmax}",
            "answer": answer(found.at_last),
        }
        | source,
    ]


def table(cells: dict[str, Any]) -> str:
    """Return the accuracy of each mechanism by number of images, with its size, its options and its steps."""
    lines = []
    for name in COLORS:
        found = [cell for size in SECONDS for cell in of_size(cells, name, size)]
        if found:
            first = found[0]
            line = {"mechanism": name} | {
                f"{size:,} images": percent(accuracies(cells, name, size)) for size in SECONDS
            }
            line["parameters"] = f"{first['parameters']:,}"
            line["learning rate"] = f"{first['lr']:g}" + (f", kernel {first['kernel']}" if first["kernel"] else "")
            line["steps"] = " / ".join(
                f"{cell['steps']:,}" for size in SECONDS for cell in of_size(cells, name, size)[:1]
            )
            speed = statistics.median(cell["images_per_second"] for cell in found)
            lines.append(line | {"images/s": f"{speed:,.0f}"})
    times = ", ".join(f"{seconds / 60:g} minutes for {size:,} images" for size, seconds in SECONDS.items())
    speeds = ", ".join(f"{name} {speed}" for name, speed in SPEED.items())
    note = (
        "Test accuracy, mean and 95 % interval over seeds, which change the training and not the images: another "
        "subset may answer otherwise. Each mechanism takes as many steps as one thread alone takes in "
        f'{times}, at {speeds} images a second; "images/s" was measured while another training ran beside. '
        "Parameters include queries and keys that a mechanism does not use; without these, all have equally many to "
        "0.2 %. The learning rate has a better validation accuracy than half and twice of it, after "
        f"{CHOICE_SECONDS / 60:g} minutes on {ALL:,} images with seed {CHOICE_SEED}; the kernel was chosen at "
        f"{MIDDLE_RATE:g}."
    )
    return f"{markdown_table(lines)}\n\n{note}"


def of_size(cells: dict[str, Any], name: str, size: int) -> list[dict[str, Any]]:
    """Return the cells of a mechanism with a number of images."""
    return [cell for cell in cells.values() if cell["setting"] == f"{name}, {size:,} images"]
