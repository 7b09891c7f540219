"""The claim that attention brings any two places together in one step, on two marks at a distance (MarkPairs)."""

from typing import Any

import torch
from claims_training import FAILS, HOLDS, OPEN, difference, fit, is_right, normalised, of_setting, percent, points

import vit
from vit.data import MarkPairs
from vit.data.mark_pairs import LONGEST, mark_pairs
from vit.support.markdown import markdown_table

STEPS, LR, WARMUP = 700, 3e-3, 50
MODEL = {"embed_dim": 36, "num_heads": 9, "mlp_ratio": 2.0}
# Without a class token, and with a norm before the mean: nothing but the mechanism brings tokens together.
MODEL |= {"class_token": False, "pool": "mean", "fc_norm": False, "patch_size": 2, "in_channels": 1, "num_classes": 2}
OPTIONS = {"window": {"window": 4}, "convolution": {"kernel": 3}}
DEPTH, DEPTHS = 4, (2, 8)  # of all mechanisms, and of those that are compared over depth
FAR = 2 * DEPTH + 1  # marks so far apart meet nowhere in DEPTH convolutions of 3 x 3
NEAR, LEARNT = 4, 0.75  # distances that a convolution has to have learnt, and with which accuracy
SETTINGS: dict[str, dict[str, Any]] = {
    f"{name}, depth {depth}": {"attention": name, "attention_kwargs": OPTIONS.get(name), "depth": depth}
    for names, depths in (
        (("softmax", "uniform", "window", "convolution", "recurrent"), (DEPTH,)),
        (("softmax", "convolution"), DEPTHS),
    )
    for depth in depths
    for name in names
}


def measure(setting: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train a model on all distances, and return its test accuracy at each."""
    torch.manual_seed(seed)
    data = MarkPairs()
    model = vit.VisionTransformer(image_size=data.image_size, **MODEL, **setting)
    images, labels, _ = mark_pairs("train")
    losses = fit(model, normalised(data, images), labels, steps=STEPS, lr=LR, warmup=WARMUP, seed=seed)
    images, labels, distances = mark_pairs("test")
    right = is_right(model, normalised(data, images), labels)
    accuracy = {str(r): right[distances == r].double().mean().item() for r in range(1, LONGEST + 1)}
    return {"accuracy": accuracy, "loss": sum(losses[-100:]) / 100}


def of_distances(cells: dict[str, Any], setting: str, first: int, last: int) -> list[float]:
    """Return the mean accuracy of each seed over a range of distances."""
    found = of_setting(cells, setting, "accuracy")
    return [sum(of[str(r)] for r in range(first, last + 1)) / (last + 1 - first) for of in found]


def rows(cells: dict[str, Any]) -> list[dict[str, str]]:
    """Return the sentence with its answer: whether softmax beats convolution on marks that are far apart."""
    far = {name: of_distances(cells, f"{name}, depth {DEPTH}", FAR, LONGEST) for name in ("softmax", "convolution")}
    if not all(far.values()):
        return []
    found = difference(far["softmax"], far["convolution"])
    near = of_distances(cells, f"convolution, depth {DEPTH}", 1, NEAR)
    learns = sum(near) / len(near) > LEARNT  # else its failure far away is one of training, and not of reach
    controls = (f"uniform, depth {DEPTH}", f"convolution, depth {2 * DEPTH}")
    uniform, deep = (percent(of_distances(cells, setting, FAR, LONGEST)) for setting in controls)
    return [
        {
            "sentence": "Attention connects any two positions by one step; a convolution needs a stack of layers",
            "who": "Vaswani et al. 2017, table 1",
            "measured": f"accuracy of {DEPTH} blocks on marks {FAR} to {LONGEST} patches apart, softmax less "
            f"convolution: {points(found)}",
            "control": f"uniform attention: {uniform}; {2 * DEPTH} blocks of convolution: {deep}; {DEPTH} of them on "
            f"marks 1 to {NEAR} apart: {percent(near)}",
            "answer": HOLDS if found[1] > 0 and learns else FAILS if found[2] < 0 else OPEN,
            "command": "`python benchmarks/claims.py reach`",
        }
    ]


def table(cells: dict[str, Any]) -> str:
    """Return the accuracy of each setting by distance."""
    ranges = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 12), (13, 15))
    lines = []
    for setting in SETTINGS:
        if of_setting(cells, setting, "accuracy"):
            line = {"mechanism": setting}
            for first, last in ranges:
                title = f"distance {first}" if first == last else f"{first} to {last}"
                line[title] = percent(of_distances(cells, setting, first, last))
            lines.append(line)
    note = f"Test accuracy, mean and 95 % interval over seeds; chance is 50 %. {STEPS:,} steps of 64 images."
    return f"{markdown_table(lines)}\n\n{note}"
