"""The claim that attention brings any two places together in one step, on two marks at a distance (MarkPairs).

Letters in the einops patterns: n images, h rows of pixels, c cells, w columns of pixels of a cell, t tokens.
"""

from functools import cache
from typing import Any

import torch
from claims_training import (
    FAILS,
    HOLDS,
    OPEN,
    difference,
    fit,
    is_right,
    mean_interval,
    normalised,
    of_setting,
    percent,
    points,
)
from einops import reduce
from torch import Tensor, nn

import vit
from vit.data import MarkPairs
from vit.data.mark_pairs import CELLS, LONGEST, mark_pairs
from vit.support.markdown import markdown_table
from vit.support.plotting import BLUE, GREEN, GREY, ORANGE, PINK

STEPS, LR, WARMUP = 500, 3e-3, 50
MODEL = {"embed_dim": 36, "num_heads": 9, "mlp_ratio": 2.0, "patch_size": 2, "in_channels": 1, "num_classes": 2}
MODEL |= {"class_token": False, "pool": "mean", "fc_norm": False}
OPTIONS = {"window": {"window": 4}, "convolution": {"kernel": 3}}
COLORS = {"softmax": BLUE, "uniform": GREY, "recurrent": PINK, "window": ORANGE, "convolution": GREEN}
DEPTHS = (1, 2, 4)
ENOUGH = {"window": 7, "convolution": 15}  # blocks that lead over the longest distance
LEARNT = 0.75  # accuracy of a mechanism that has learnt a distance within its reach
SETTINGS: dict[str, dict[str, Any]] = {
    f"{name}, depth {depth}{', shuffled labels' if shuffled else ''}": {
        "attention": name,
        "depth": depth,
        "shuffled": shuffled,
    }
    for shuffled, names, depths in ((False, COLORS, DEPTHS), (True, ("softmax", "convolution"), (2,)))
    for depth in depths
    for name in names
} | {f"{name}, depth {depth}": {"attention": name, "depth": depth, "shuffled": False} for name, depth in ENOUGH.items()}


class ReadAtMark(nn.Module):
    """A classifier that reads the token of the second mark.

    The mechanism alone brings the first mark there. A class token, or a mean over tokens, would bring the marks
    together by itself.
    """

    def __init__(self, encoder: vit.VisionTransformer) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits: (N, 1, 2, 32) -> (N, 2)."""
        second = reduce(images, "n 1 h (c w) -> n c", "max", c=CELLS).topk(2).indices.amax(dim=1)
        tokens = self.encoder.forward_features(images)
        return self.encoder.head(tokens[torch.arange(len(images)), second])


def measure(setting: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train a model on all distances. Return its test accuracy, and how many pairs are within its reach, at each."""
    torch.manual_seed(seed)
    data, name, depth = MarkPairs(), setting["attention"], setting["depth"]
    model = ReadAtMark(build(name, depth))
    images, labels, _ = mark_pairs("train")
    if setting["shuffled"]:
        labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    losses = fit(model, normalised(data, images), labels, steps=STEPS, lr=LR, warmup=WARMUP, seed=seed)
    images, labels, distances = mark_pairs("test")
    right, shares = is_right(model, normalised(data, images), labels), reached(name)
    return {
        "accuracy": {str(r): right[distances == r].double().mean().item() for r in range(1, LONGEST + 1)},
        "within_reach": {str(r): shares[depth - 1][r] for r in range(1, LONGEST + 1)},
        "steps_needed": {
            str(r): next(1 + before for before, share in enumerate(shares) if share[r] == 1)
            for r in range(1, LONGEST + 1)
        },
        "loss": sum(losses[-100:]) / 100,
    }


def build(name: str, depth: int) -> vit.VisionTransformer:
    """Return an untrained model with a mechanism."""
    return vit.VisionTransformer(
        image_size=MarkPairs.image_size, attention=name, attention_kwargs=OPTIONS.get(name), depth=depth, **MODEL
    )


@cache
@torch.no_grad()
def reached(name: str) -> list[dict[int, float]]:
    """Return the share of the pairs at each distance whose right token sees the left one, after 1 to 15 blocks.

    A block leads from token m to token n if a head gives m a weight in n. A way leads through one edge a block, or
    stays.
    """
    graph, shares = torch.eye(CELLS), []
    for block in build(name, LONGEST).double().blocks:
        weights = block.attn.weights(torch.randn(1, CELLS, MODEL["embed_dim"]).double(), grid=(1, CELLS))
        edges = reduce((weights != 0).float(), "1 h n m -> n m", "max")
        graph = ((edges + torch.eye(CELLS)) @ graph).clamp(max=1)
        shares.append({r: graph.diagonal(-r).mean().item() for r in range(1, LONGEST + 1)})
    return shares


def of_distances(cells: dict[str, Any], setting: str, first: int, last: int) -> list[float]:
    """Return the mean accuracy of each seed over a range of distances."""
    found = of_setting(cells, setting, "accuracy")
    return [sum(of[str(r)] for r in range(first, last + 1)) / (last + 1 - first) for of in found]


def rows(cells: dict[str, Any]) -> list[dict[str, str]]:
    """Return the sentence with its answer: whether one block of softmax beats one of convolution beyond its kernel."""
    deep = DEPTHS[-1]
    softmax, convolution = (of_distances(cells, f"{name}, depth 1", 2, LONGEST) for name in ("softmax", "convolution"))
    near = of_distances(cells, "convolution, depth 1", 1, 1)
    stack = of_distances(cells, f"convolution, depth {deep}", 1, deep)
    shuffled = of_distances(cells, "softmax, depth 2, shuffled labels", 1, LONGEST)
    if not all((softmax, convolution, stack, shuffled)):
        return []
    found = difference(softmax, convolution)
    learns = min(sum(part) / len(part) for part in (near, stack)) > LEARNT  # else it fails by training, not by reach
    _, low, high = mean_interval(shuffled)
    return [
        {
            "sentence": "Attention connects any two positions in one step; a convolution needs a stack of layers",
            "source": "Vaswani et al. 2017, table 1",
            "measured": f"softmax minus convolution, one block, marks 2 to {LONGEST} patches apart: {points(found)}",
            "control": f"convolution on marks 1 apart: {percent(near)}; {deep} blocks of it on marks 1 to {deep} "
            f"apart: {percent(stack)}; softmax with shuffled labels: {percent(shuffled)}",
            "answer": HOLDS if found[1] > 0 and learns and low <= 0.5 <= high else FAILS if found[2] < 0 else OPEN,
        }
    ]


def table(cells: dict[str, Any]) -> str:
    """Return the accuracy of each setting by distance, and the blocks that lead over the longest."""
    ranges = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 12), (13, 15))
    lines = []
    for setting in SETTINGS:
        if steps := of_setting(cells, setting, "steps_needed"):
            line = {"mechanism": setting}
            for first, last in ranges:
                title = f"distance {first}" if first == last else f"{first} to {last}"
                line[title] = percent(of_distances(cells, setting, first, last))
            line[f"blocks needed for {LONGEST}"] = str(steps[0][str(LONGEST)])
            lines.append(line)
    note = (
        f"Test accuracy, mean and 95 % interval over seeds; chance is 50 %. {STEPS:,} steps of 64 images. The blocks "
        "needed are read from the weights: the fewest through which the right mark sees the left one."
    )
    return f"{markdown_table(lines)}\n\n{note}"
