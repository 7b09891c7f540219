"""The tables of an evaluation with several labels per image: a row for each image, and those of the report."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from vit.objectives.classify.evaluation import BEST, MISTAKES
from vit.objectives.classify.tables import SHARES, end_of, files_title, probability_rows, shown_threshold
from vit.training.description import Table

CLASS_SHARES = {"average_precision": "average precision, %", **SHARES, "threshold": "threshold, %"}


def predicted_rows(probabilities: Tensor, thresholds: Tensor, names: Sequence[str]) -> list[dict[str, str]]:
    """Return the classes at or above their thresholds, and the five most probable ones: (N, C) on the CPU."""
    rows = []
    for values in probabilities:
        order = values.argsort(descending=True).tolist()
        ranked = [f"{names[number]} {values[number]:.4f}" for number in order[:BEST]]
        rows.append({"labels": _listed(values >= thresholds, names, order), "probabilities": "; ".join(ranked)})
    return rows


def evaluated_rows(
    found: Mapping[str, Tensor], thresholds: Tensor, names: Sequence[str], *, has_views: bool
) -> dict[int, dict[str, str]]:
    """Return the row of each image by its place in the data set.

    Args:
        found: The results of an evaluation for each image: its ``rows``.
        thresholds: Lowest probability at which an image counts as showing a class, (C,).
        names: Names of the classes.
        has_views: Whether to add the prediction over several views.
    """
    targets, probabilities, in_order = found["targets"].bool(), found["probabilities"], range(len(names))
    predicted, every = predicted_rows(probabilities, thresholds, names), probability_rows(probabilities, names)
    over_views = predicted_rows(found["of_views"], thresholds, names) if has_views else []
    is_right = ((probabilities >= thresholds) == targets).all(dim=1).tolist()
    rows = {}
    for place, index in enumerate(found["index"].tolist()):
        truth = {"true_labels": _listed(targets[place], names, in_order), "correct": str(is_right[place]).lower()}
        views = {"labels_over_views": over_views[place]["labels"]} if has_views else {}
        rows[index] = truth | predicted[place] | views | every[place]
    return rows


def mistakes_table(rows: Sequence[Mapping[str, str]], scores: Mapping[str, Any]) -> list[Table]:
    """Return the wrong labels that are farthest from their threshold, with their files; [] if there are none."""
    found, classes = [], scores.get("classes", [])
    for row in rows:
        true = _labels_of(row["true_labels"], [known["name"] for known in classes])
        for known in classes:
            name, probability = known["name"], np.float32(row[f"P({known['name']})"])
            threshold = np.float32(known["threshold"])
            if (probability >= threshold) != (name in true):
                shown = "is there" if name in true else "is not there"
                cells = (
                    end_of(row["file"]),
                    name,
                    shown_threshold(float(probability)),
                    shown_threshold(float(threshold)),
                    shown,
                )
                found.append((abs(probability - threshold), cells))
    worst = [cells for _, cells in sorted(found, key=lambda row: -row[0])[:MISTAKES]]
    title = files_title(len(worst), len(found), "wrong labels")
    header = ("file", "label", "probability, %", "threshold, %", "truth")
    return [Table(title, header, worst)] if found else []


def _listed(is_there: Tensor, names: Sequence[str], order: Sequence[int]) -> str:
    return "; ".join(names[number] for number in order if is_there[number])


def _labels_of(cell: str, names: Sequence[str]) -> list[str]:
    """Return the names that ``_listed`` has joined, in their order."""
    found = []
    for name in names:
        if f"{cell}; ".startswith(f"{name}; "):  # a name may have "; " in it as well
            found.append(name)
            cell = cell[len(name) + 2 :]
    return found
