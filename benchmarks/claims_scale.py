"""Claims about scale: the loss over compute, and what a law that is fitted to small models says of a larger one.

Models of several widths train on shares of the handwritten digits, for several numbers of steps, each with a learning
rate that decays over its own steps (Hoffmann et al. 2022). The digits, as the loss on MarkPairs falls at once when a
model finds the marks, to nearly zero, and has no trend to fit. The loss is that of the test images; validation images
choose the number of steps within equal steps. The laws are fitted, for each seed, to one such loss for each width, on
all images. The larger model is not among them.
"""

import math
import statistics
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from claims_training import BATCH, FAILS, HOLDS, OPEN, difference, fit, mean_interval, mean_with_interval, normalised
from scipy.optimize import curve_fit

import vit
from vit.data import Digits
from vit.support.markdown import markdown_table
from vit.support.plotting import BLUE, BROWN, GREEN, ORANGE
from vit.training.flop import training_flop

WIDTHS, LARGER = (8, 12, 16, 24), 48
SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)
STEPS = (75, 150, 300)
RATE = 0.06  # learning rate of width 1, which falls with the square root of the width
MODEL = {"image_size": 8, "patch_size": 2, "in_channels": 1, "num_heads": 2, "depth": 1, "mlp_ratio": 2.0}
MODEL |= {"class_token": False, "pool": "mean"}
COLORS = dict(zip((*WIDTHS, LARGER), (BLUE, GREEN, BROWN, ORANGE, "black"), strict=True))
SETTINGS: dict[str, dict[str, Any]] = {
    f"width {width}, {share:.1%} of the images": {"width": width, "share": share}
    for width, shares in ((*((width, SHARES) for width in WIDTHS), (LARGER, SHARES[-1:])))
    for share in shares
}

Points = list[tuple[float, float]]  # compute and loss of trainings
Law = Callable[[float], float]


def measure(setting: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train a model for each number of steps. Return the test losses, the chosen steps, and the compute of a step."""
    data = Digits(val_fraction=0.1)
    data.setup("fit")
    train, others = data.sets["train"], {stage: data.sets[stage] for stage in ("val", "test")}
    count = round(len(train.labels) * setting["share"])
    kept = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(seed))[:count]
    images, width = normalised(data, train.images[kept]), setting["width"]
    losses: dict[str, dict[str, float]] = {"val": {}, "test": {}}
    for steps in sorted({*STEPS, steps_of_equal_compute(width)}):
        torch.manual_seed(seed)
        model = build(width)
        fit(model, images, train.labels[kept], steps=steps, lr=RATE / width**0.5, warmup=steps // 10, seed=seed)
        for stage, part in others.items():
            losses[stage][str(steps)] = loss_on(model, normalised(data, part.images), part.labels)
    return {
        "width": width,
        "share": setting["share"],
        "images": count,
        "tested": len(others["test"].labels),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "flop_per_step": flop_per_step(width),
        "losses": losses["test"],
        "chosen": min(map(str, STEPS), key=losses["val"].__getitem__),
    }


def build(width: int) -> vit.VisionTransformer:
    """Return an untrained model."""
    return vit.VisionTransformer(**MODEL, embed_dim=width)


@cache
def flop_per_step(width: int) -> int:
    """Return the floating-point operations of a step of training, as torch counts them."""
    return BATCH * training_flop(build(width))


def steps_of_equal_compute(width: int) -> int:
    """Return the steps whose compute is that of the narrowest model's longest training."""
    return round(STEPS[-1] * flop_per_step(WIDTHS[0]) / flop_per_step(width))


@torch.no_grad()
def loss_on(model: vit.VisionTransformer, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the mean loss of a model on images."""
    return F.cross_entropy(model.eval()(images), labels).item()


def best_of_widths(cells: dict[str, Any], seed: int, share: float, *widths: int) -> Points:
    """Return compute and loss of the best training of each width within the equal steps."""
    points = {
        cell["width"]: (int(cell["chosen"]) * cell["flop_per_step"], at_equal_steps(cell))
        for cell in cells.values()
        if (cell["seed"], cell["share"]) == (seed, share)
    }
    return [points[width] for width in widths]


def power_law(points: Points) -> tuple[float, float, float]:
    """Return a, b and c of the law ``a C^-b + c`` nearest to the logarithms of the losses; no number is negative.

    Compute counts in multiples of the cheapest training, as a then stays near the losses.

    >>> [round(number, 4) for number in power_law([(1.0, 0.9), (4.0, 0.5), (16.0, 0.3), (64.0, 0.2)])]
    [0.8, 0.5, 0.1]
    """
    compute, loss = np.array(sorted(points)).T
    start = (loss[0], max(exponent(points), 0.01), 0.5 * loss.min())

    def log_of_law(x: np.ndarray, a: float, b: float, c: float) -> np.ndarray:
        return np.log(a * x**-b + c)

    found, _ = curve_fit(log_of_law, compute / compute[0], np.log(loss), start, bounds=(1e-12, np.inf), max_nfev=10_000)
    return tuple(float(number) for number in found)


def predicted(points: Points, compute: float) -> float:
    """Return what the power law of trainings says of another compute.

    >>> round(predicted([(1.0, 0.9), (4.0, 0.5), (16.0, 0.3), (64.0, 0.2)], 256.0), 4)
    0.15
    """
    a, b, c = power_law(points)
    return a * (compute / min(points)[0]) ** -b + c


def straight(points: Points) -> Law:
    """Return the power law without c: a straight line of logarithms.

    >>> round(straight([(1.0, 0.8), (4.0, 0.4), (16.0, 0.2)])(64.0), 6)
    0.1
    """
    slope, start = np.polyfit(*np.log(points).T, deg=1)
    return lambda compute: math.exp(start + slope * math.log(compute))


def exponent(points: Points) -> float:
    """Return b of the power law without c."""
    return -float(np.polyfit(*np.log(points).T, deg=1)[0])


def logarithm(points: Points) -> Law:
    """Return the law ``a - b log C`` that is nearest to the losses, relative to each: the control, as long as a power.

    >>> round(logarithm([(1.0, 0.8), (math.e, 0.6), (math.e**2, 0.4)])(math.e**3), 6)
    0.2
    """
    compute, loss = np.array(points).T
    slope, start = np.polyfit(np.log(compute), loss, deg=1, w=1 / loss)
    return lambda compute: float(start + slope * math.log(compute))


def misfit(law: Law, points: Points) -> float:
    """Return by how much losses differ from a law, the root of the mean square, relative to each loss.

    >>> misfit(lambda compute: 1.1, [(1.0, 1.0), (2.0, 1.0)])
    0.10000000000000009
    """
    return statistics.mean((law(compute) / loss - 1) ** 2 for compute, loss in points) ** 0.5


def seeds_of(cells: dict[str, Any]) -> list[int]:
    """Return the seeds of which all models were trained."""
    trained = {(cell["setting"], cell["seed"]) for cell in cells.values()}
    return [seed for seed in sorted({seed for _, seed in trained}) if all((name, seed) in trained for name in SETTINGS)]


def with_interval(found: tuple[float, float, float]) -> str:
    """Return a loss, which is never below 0, and its interval.

    >>> with_interval((0.1, -0.05, 0.25))
    '0.10 (0.00 to 0.25)'
    """
    return "{:.2f} ({:.2f} to {:.2f})".format(*(max(0.0, number) for number in found))


def rows(cells: dict[str, Any]) -> list[dict[str, str]]:
    """Return the sentences about the law and its prediction with their answers."""
    seeds = seeds_of(cells)
    if not seeds:
        return []
    fitted, few = ([best_of_widths(cells, seed, share, *WIDTHS) for seed in seeds] for share in (SHARES[-1], SHARES[0]))
    powers, powers_of_few = (mean_interval([exponent(points) for points in of]) for of in (fitted, few))
    misfits = [[misfit(law(points), points) for points in fitted] for law in (straight, logarithm)]
    better = difference(*misfits)
    larger = [best_of_widths(cells, seed, SHARES[-1], LARGER)[0] for seed in seeds]
    widest = [points[-1][1] for points in fitted]
    foreseen = [predicted(points, compute) for points, (compute, _) in zip(fitted, larger, strict=True)]
    without_floor = [straight(points)(compute) for points, (compute, _) in zip(fitted, larger, strict=True)]
    measured = [found for _, found in larger]
    return [
        {
            "sentence": "Loss falls as a power of compute",
            "source": "Kaplan et al. 2020",
            "measured": f"exponent of the loss over compute: {powers[0]:.2f} ({powers[1]:.2f} to {powers[2]:.2f}); the "
            f"power misses losses by {100 * statistics.mean(misfits[0]):.0f} %, a logarithm by "
            f"{100 * statistics.mean(misfits[1]):.0f} %",
            "control": f"exponent with {100 * SHARES[0]:.1f} % of the images: {powers_of_few[0]:.2f} "
            f"({powers_of_few[1]:.2f} to {powers_of_few[2]:.2f})",
            "answer": is_power(powers, better),
        },
        {
            "sentence": "A fit on small models predicts a larger one",
            "source": "Hoffmann et al. 2022; Zhai et al. 2022 for Vision Transformers",
            "measured": f"loss of width {LARGER}, predicted from widths {WIDTHS[0]} to {WIDTHS[-1]}: "
            f"{with_interval(mean_interval(foreseen))}; measured: {with_interval(mean_interval(measured))}",
            "control": f"a power without a constant predicts {with_interval(mean_interval(without_floor))}; width "
            f"{WIDTHS[-1]}: {with_interval(mean_interval(widest))}",
            "answer": is_foreseen(foreseen, measured, widest),
        },
    ]


def is_power(powers: tuple[float, float, float], misses: tuple[float, float, float]) -> str:
    """Return the answer of an exponent, and of how much more a power misses the losses than a logarithm does."""
    if powers[1] > 0 and misses[2] < 0:
        return HOLDS
    return FAILS if powers[2] < 0 or misses[1] > 0 else OPEN


def is_foreseen(foreseen: list[float], measured: list[float], widest: list[float]) -> str:
    """Return whether the interval of the prediction holds the loss of the larger model, and not that of a smaller."""
    _, low, high = mean_interval(foreseen)
    gap = difference(foreseen, measured)
    if gap[1] > 0 or gap[2] < 0:
        return FAILS
    says_something = not low <= statistics.mean(widest) <= high
    return HOLDS if says_something and low <= statistics.mean(measured) <= high else OPEN


def at_equal_steps(cell: dict[str, Any]) -> float:
    """Return the loss of the number of steps that was chosen within the equal steps."""
    return cell["losses"][cell["chosen"]]


def at_equal_compute(cell: dict[str, Any]) -> float:
    """Return the loss at the compute of the narrowest model's longest training."""
    return cell["losses"][str(steps_of_equal_compute(cell["width"]))]


def table(cells: dict[str, Any]) -> str:
    """Return the losses at equal steps and at equal compute by width and share of the images."""
    parts = []
    for title, read in (("equal steps", at_equal_steps), ("equal compute", at_equal_compute)):
        lines = []
        for width in (*WIDTHS, LARGER) if read is at_equal_steps else WIDTHS:
            of_width = [cell for cell in cells.values() if cell["width"] == width]
            if of_width:
                line = {title: f"width {width}", "parameters": f"{of_width[0]['parameters']:,}"}
                counts = STEPS[-1:] if read is at_equal_steps else (steps_of_equal_compute(width),)
                line["steps"] = ("at most " if read is at_equal_steps else "") + str(counts[0])
                line["MFLOP a step"] = f"{of_width[0]['flop_per_step'] / 1e6:,.0f}"
                for share in SHARES:
                    found = [read(cell) for cell in of_width if cell["share"] == share]
                    line[f"{share:.1%} of the images"] = mean_with_interval(found, ".3f")
                lines.append(line)
        parts.append(markdown_table(lines))
    tested = next(iter(cells.values()))["tested"]
    note = (
        f"Loss on {tested} test images, mean and 95 % interval over seeds. One block; trainings of "
        f"{', '.join(map(str, STEPS))} steps of {BATCH} images, of which equal steps show the one that is best on "
        "validation images."
    )
    if seeds := seeds_of(cells):
        laws = [power_law(best_of_widths(cells, seed, SHARES[-1], *WIDTHS)) for seed in seeds]
        shown = "; ".join(f"seed {seed}: b {b:.2f}, c {c:.3f}" for seed, (_, b, c) in zip(seeds, laws, strict=True))
        note += f" The law a C^-b + c that predicts width {LARGER}: {shown}."
    return "\n\n".join([*parts, note])
