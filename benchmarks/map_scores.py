"""The fingerprint of the evaluation of maps: the maps of every method, and all their scores, on fixed images.

Small drawn models stand for the trained ones: one reads the mean of the patches; the other reads the class token, and
its patches overlap. All is computed in float64, so that machines agree. What only refuses models, or checks names and
options, changes no number. A method that was added later changes none of the others.

The numbers of a row are added with different weights, so that a change of any of them shows in one number.

This file imports names of the package alone, so that it runs in the tree of an earlier commit, too (-P leaves
out the folder of this file):

    PYTHONPATH=TREE python -P benchmarks/map_scores.py '["mean", "class token"]'
"""

import json
import math
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

import vit
from vit.explain import METHODS, localise, score
from vit.explain.evaluation.ground_truth import cells_of_boxes
from vit.explain.evaluation.information_flow import follow_noise
from vit.explain.evaluation.sanity import uniform_attention
from vit.explain.maps import Subject, signed_map

SIDE = 24
SIZES = {"image_size": SIDE, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5}
MODELS = {"mean": {"pool": "mean"}, "class token": {"patch_stride": 4}}
IMAGES = 2
COSTS = ("ms", "MB")  # of a machine


def subject_of(name: str) -> tuple[vit.VisionTransformer, Tensor, Tensor]:
    """Return a drawn model, images and their labels. Its weights are large, so that attention is not even."""
    torch.manual_seed(0)
    model = vit.VisionTransformer(**SIZES, **MODELS[name]).double().eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model, torch.randn(IMAGES, 3, SIDE, SIDE, dtype=torch.float64), torch.arange(IMAGES)


def weighted(numbers: Iterable[float]) -> float:
    """Return the sum of numbers with a weight for each place."""
    return math.fsum(math.cos(place) * number for place, number in enumerate(numbers))


def of_rows(rows: Iterable[dict[str, Any]], name: str) -> dict[str, float]:
    """Return a number for each row of a table, without costs, by the column that names the row."""
    found = {}
    for row in rows:
        values = [value for column, value in row.items() if column not in (name, *COSTS)]
        flat = [part for value in values for part in (value if isinstance(value, tuple) else [value])]
        found[str(row[name])] = weighted(number for number in flat if isinstance(number, int | float))
    return found


def map_scores(name: str) -> dict[str, float]:
    """Return a number for each map and each row of the tables of scores.

    Raises:
        ValueError: If there is no such model.
    """
    if name not in MODELS:
        raise ValueError(f"no model {name!r}: choose one of {', '.join(MODELS)}")
    with torch.random.fork_rng(devices=[]):
        model, images, labels = subject_of(name)
        boxes = torch.tensor([[3, 5, 11, 9]]).repeat(IMAGES, 1)
        masks = cells_of_boxes(boxes, (SIDE, SIDE), model.patch_embed.grid_size)
        subject = Subject(model, images, labels)
        maps = {method: signed_map(method, subject) for method in METHODS}
        tables = {
            "map": {method: weighted(each.flatten().tolist()) for method, each in maps.items()},
            "score": of_rows(score(model, images.split(1)).rows, "method"),
            "place": of_rows(localise(model, images, labels, masks).rows, "method"),
            "flow": of_rows(follow_noise(model, images).rows, "method"),
            "uniform": of_rows(uniform_attention(model, images, labels).rows, "layers"),
        }
    return {f"{table} of {row}": number for table, rows in tables.items() for row, number in rows.items()}


if __name__ == "__main__":
    print(json.dumps({name: map_scores(name) for name in json.loads(sys.argv[1])}))
