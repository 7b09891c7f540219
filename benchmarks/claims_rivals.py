"""Claims about attention beside its rivals, convolution and recurrence, over the number of training images.

All models have the same number of parameters that the logits depend on. What a mechanism leaves unused (queries and
keys of the convolution, queries of recurrent attention) its MLPs get instead. Subsets of the handwritten digits are
nested, and the same for all mechanisms. The learning rate, and the kernel of the convolution, are chosen for each
mechanism on validation images and by a seed of their own; accuracies are those of test images.
"""

import statistics
import time
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from claims_training import (
    OPEN,
    answer,
    combined,
    difference,
    fit,
    is_right,
    mean_interval,
    normalised,
    of_setting,
    percent,
    points,
)

import vit
from vit.data import Digits
from vit.support.markdown import markdown_table
from vit.support.plotting import BLUE, GREEN, GREY, PINK

STEPS, WARMUP = 200, 20
MODEL = {"image_size": 8, "patch_size": 2, "in_channels": 1, "embed_dim": 36, "num_heads": 9, "depth": 2}
MODEL |= {"class_token": False, "pool": "mean"}
COLORS = {"softmax": BLUE, "convolution": GREEN, "recurrent": PINK, "uniform": GREY}
HIDDEN = {"softmax": 72, "convolution": 105, "recurrent": 90, "uniform": 108}  # channels inside the MLPs
HELD_OUT = 1 / 6  # share of the training images that are validation images
ALL = 1199  # the others
SIZES = (50, 150, 450, ALL)
FEW = SIZES[:2]
LEARNING_RATES, KERNELS = (3e-3, 1e-2, 3e-2, 1e-1), (3, 5)  # a kernel of 7 is wider than the grid of patches
CHOICE_SEED, CHOICE_SIZE = 3, 450  # of the choice of learning rate and kernel
CHANCE = 1 / Digits.num_classes
SHUFFLED = ("softmax", "convolution")
SETTINGS: dict[str, dict[str, Any]] = {
    f"{name}, {size:,} images{', shuffled labels' if shuffled else ''}": {
        "attention": name,
        "size": size,
        "shuffled": shuffled,
    }
    for shuffled, names, sizes in ((False, COLORS, SIZES), (True, SHUFFLED, (ALL,)))
    for size in sizes
    for name in names
}


def measure(setting: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train a model on a subset. Return its test accuracy, its size, the chosen options and the time of a step."""
    name, choice = setting["attention"], chosen(setting["attention"])
    data = digits()
    images, labels = subset(data, setting["size"], seed)
    if setting["shuffled"]:
        labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    torch.manual_seed(seed)
    model = build(name, choice["kernel"])
    parameters = used_parameters(build(name, choice["kernel"]))
    start = time.process_time()
    fit(model, images, labels, steps=STEPS, lr=choice["lr"], warmup=WARMUP, seed=seed)
    seconds = time.process_time() - start
    accuracy = accuracy_on(data, "test", model)
    return {"accuracy": accuracy, "parameters": parameters, "step_ms": 1e3 * seconds / STEPS} | choice


@cache
def chosen(name: str) -> dict[str, Any]:
    """Return learning rate and kernel of a mechanism with the best accuracy on validation images, and all of these."""
    data, tried = digits(), {}
    for lr, kernel in product(LEARNING_RATES, KERNELS if name == "convolution" else (None,)):
        torch.manual_seed(CHOICE_SEED)
        model = build(name, kernel)
        fit(model, *subset(data, CHOICE_SIZE, CHOICE_SEED), steps=STEPS, lr=lr, warmup=WARMUP, seed=CHOICE_SEED)
        tried[lr, kernel] = accuracy_on(data, "val", model)
    lr, kernel = max(tried, key=tried.__getitem__)
    shown = {f"lr {lr:g}" + (f", kernel {kernel}" if kernel else ""): value for (lr, kernel), value in tried.items()}
    return {"lr": lr, "kernel": kernel, "validation": shown}


def build(name: str, kernel: int | None = None) -> vit.VisionTransformer:
    """Return an untrained model with a mechanism."""
    options = {"kernel": kernel} if kernel else None
    ratio = HIDDEN[name] / MODEL["embed_dim"]
    return vit.VisionTransformer(**MODEL, attention=name, attention_kwargs=options, mlp_ratio=ratio)


def used_parameters(model: vit.VisionTransformer) -> int:
    """Return how many parameters have a gradient that is not zero, for random images."""
    model = model.double()
    shape = 32, *model.pretrained_cfg["input_size"]
    images = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    F.cross_entropy(model(images), torch.arange(32) % model.num_classes).backward()
    return sum(int(parameter.grad.count_nonzero()) for parameter in model.parameters() if parameter.grad is not None)


def digits() -> Digits:
    """Return the handwritten digits with validation images."""
    data = Digits(val_fraction=HELD_OUT)
    data.setup("fit")
    return data


def subset(data: Digits, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels of a random subset of the training images, of which smaller ones are parts."""
    train = data.sets["train"]
    kept = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(seed))[:size]
    return normalised(data, train.images[kept]), train.labels[kept]


def accuracy_on(data: Digits, split: str, model: vit.VisionTransformer) -> float:
    """Return the accuracy of a model on the images of a split."""
    images = data.sets[split]
    return is_right(model, normalised(data, images.images), images.labels).double().mean().item()


def accuracies(cells: dict[str, Any], name: str, *sizes: int) -> list[float]:
    """Return the accuracy of each seed that has all of some sizes of the training set, the mean over these."""
    settings = [f"{name}, {size:,} images" for size in sizes]
    found = [
        {cell["seed"]: cell["accuracy"] for cell in cells.values() if cell["setting"] == setting}
        for setting in settings
    ]
    return [statistics.mean(of[seed] for of in found) for seed in sorted(set.intersection(*map(set, found)))]


@dataclass(frozen=True)
class Compared:
    """Accuracies of each mechanism after few and after many images, and the two differences that sentences are about.

    Attributes:
        few: The accuracy of each seed, by mechanism.
        many: The same after many images.
        at_first: Convolution minus softmax after few images, with its interval.
        at_last: Softmax minus convolution after many images.
    """

    few: dict[str, list[float]]
    many: dict[str, list[float]]
    at_first: tuple[float, float, float]
    at_last: tuple[float, float, float]

    @property
    def shrinking(self) -> tuple[float, float, float]:
        """The lead of convolution over softmax with few images minus that with many."""
        few, many = self.few, self.many
        return combined([few["convolution"], many["softmax"]], [few["softmax"], many["convolution"]])

    @property
    def others_at_first(self) -> str:
        """Uniform and recurrent attention minus softmax after few images, in words."""
        uniform, recurrent = (
            points(difference(self.few[name], self.few["softmax"])) for name in ("uniform", "recurrent")
        )
        return f"uniform minus softmax there: {uniform}; recurrent minus softmax there: {recurrent}"


def compared(cells: dict[str, Any], few: tuple[int, ...], many: int) -> Compared | None:
    """Return what is compared after some numbers of images; None if a mechanism was not measured there."""
    at_few, at_many = ({name: accuracies(cells, name, *sizes) for name in COLORS} for sizes in (few, (many,)))
    if not all((*at_few.values(), *at_many.values())):
        return None
    at_first = difference(at_few["convolution"], at_few["softmax"])
    return Compared(at_few, at_many, at_first, difference(at_many["softmax"], at_many["convolution"]))


def rows(cells: dict[str, Any]) -> list[dict[str, str]]:
    """Return the sentences about few and enough images with their answers."""
    found = compared(cells, FEW, ALL)
    shuffled = {name: of_setting(cells, f"{name}, {ALL:,} images, shuffled labels", "accuracy") for name in SHUFFLED}
    if found is None or not all(shuffled.values()):
        return []
    intervals = [mean_interval(values) for values in shuffled.values()]
    is_chance = all(low <= CHANCE <= high for _, low, high in intervals)
    times = {name: statistics.median(of_mechanism(cells, name, "step_ms")) for name in SHUFFLED}
    few_words = " or ".join(f"{size:,}" for size in FEW)
    source = {"source": "Dosovitskiy et al. 2021, sec. 4.3"}
    return [
        {
            "sentence": "Convolution leads attention most when images are few",
            "measured": f"lead of convolution over softmax, {few_words} images minus {ALL:,}: "
            f"{points(found.shrinking)}",
            "control": f"the lead with {few_words} images: {points(found.at_first)}; {found.others_at_first}; softmax "
            f"with shuffled labels: {percent(shuffled['softmax'])}",
            "answer": answer(found.shrinking) if is_chance else OPEN,
        }
        | source,
        {
            "sentence": "Attention does better than convolution once there are enough images (here 1,199)",
            "measured": f"softmax minus convolution, {ALL:,} images: {points(found.at_last)}",
            "control": f"uniform: {percent(found.many['uniform'])}; softmax: {percent(found.many['softmax'])}; "
            f"convolution with shuffled labels: {percent(shuffled['convolution'])}; a step: softmax "
            f"{times['softmax']:.1f} ms, "
            f"convolution {times['convolution']:.1f} ms",
            "answer": answer(found.at_last) if is_chance else OPEN,
        }
        | source,
    ]


def of_mechanism(cells: dict[str, Any], name: str, key: str) -> list[Any]:
    """Return a number of each training of a mechanism whose labels are right."""
    return [value for size in SIZES for value in of_setting(cells, f"{name}, {size:,} images", key)]


def table(cells: dict[str, Any]) -> str:
    """Return the accuracy of each mechanism by number of images, with its size, options and time of a step."""
    lines = []
    for name in COLORS:
        if times := of_mechanism(cells, name, "step_ms"):
            lr, kernel, parameters = (of_mechanism(cells, name, key)[0] for key in ("lr", "kernel", "parameters"))
            line = {"mechanism": name} | {f"{size:,} images": percent(accuracies(cells, name, size)) for size in SIZES}
            line["parameters"] = f"{parameters:,}"
            line["learning rate"] = f"{lr:g}" + (f", kernel {kernel}" if kernel else "")
            lines.append(line | {"step": f"{statistics.median(times):.1f} ms"})
    shuffled = {name: of_setting(cells, f"{name}, {ALL:,} images, shuffled labels", "accuracy") for name in SHUFFLED}
    shown = ", ".join(f"{name} {percent(values)}" for name, values in shuffled.items() if values)
    grid = f"{', '.join(f'{lr:g}' for lr in LEARNING_RATES)} and {', '.join(map(str, KERNELS))}"
    note = (
        f"Test accuracy, mean and 95 % interval over seeds; {STEPS} steps of 64 images. With shuffled labels: {shown}. "
        "Parameters are those with a gradient that is not zero. Learning rate and kernel are those of "
        f"{grid} with the best validation accuracy after {CHOICE_SIZE} images and seed {CHOICE_SEED}. A step is the "
        "median of processor time on one thread."
    )
    return f"{markdown_table(lines)}\n\n{note}"
