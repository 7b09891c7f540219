"""A table of the test images of several runs: what each run predicted of the images that it was not trained on."""

import csv
from collections.abc import Mapping
from pathlib import Path

import torch
import yaml
from lightning.pytorch.cli import instantiate_class
from torch import Tensor

from vit.objectives import OBJECTIVES
from vit.runs.several import Member, read_results
from vit.support.class_names import name_classes
from vit.support.files import replacing

TABLE = "test_images.csv"
BATCH = 256
UTF8 = {"encoding": "utf-8", "errors": "backslashreplace"}  # also for names of files that are no text


def write_out_of_fold(path: Path, runs: Mapping[Member, Path], groups: Mapping[str, str]) -> int:
    """Write the rows of the test images of all runs as a CSV file, and return their number.

    The columns are the file, its group if there are ``groups``, the fold if there are folds, the seed, and then what is
    true and what is predicted.
    """
    rows = []
    for member, folder in runs.items():
        for row in tested_images(folder):
            of_group = {"group": groups[row["file"]]} if groups else {}
            of_fold = {} if member.fold is None else {"fold": member.fold}
            rows.append({"file": row["file"], **of_group, **of_fold, "seed": member.seed, **row})
    if rows:
        with replacing(path) as unfinished, unfinished.open("w", newline="", **UTF8) as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
            writer.writeheader()
            writer.writerows(rows)
    return len(rows)


def tested_images(folder: Path) -> list[dict[str, str]]:
    """Return a row for each test image of a run: its file, the truth, and what the tested weights predict of it."""
    if (folder / TABLE).exists():
        with (folder / TABLE).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    results = read_results(folder)
    objective = OBJECTIVES[results["objective"]]
    checkpoint = folder / "checkpoints" / f"{results['test_weights']}.ckpt"
    if results.get(f"test_{objective.monitor.name}") is None or not checkpoint.exists():
        return []
    data = instantiate_class((), yaml.safe_load((folder / "config.yaml").read_text())["data"])
    data.prepare_data()
    data.setup("test")
    module = objective.load_from_checkpoint(checkpoint, map_location="cpu", weights_only=True).eval()
    images, rows = data.sets["test"], []
    for indices in torch.arange(len(images.labels)).split(BATCH):
        pixels, labels = images.decode(indices)
        files = [str(index) if images.files is None else images.files[index] for index in indices.tolist()]
        with torch.inference_mode():
            outputs = module.predict_step((pixels, files, []), 0)
        found = zip(files, _truth(labels, data.class_names), module.prediction_rows(outputs), strict=True)
        of_batch = [{"file": file} | truth | said for file, truth, said in found]
        if data.class_names and isinstance(outputs, Tensor) and outputs.ndim > 1:  # a probability for each class
            names = name_classes(data.class_names, outputs.shape[1])
            for row, probabilities in zip(of_batch, outputs.tolist(), strict=True):
                row |= {f"P({name})": f"{value:.6f}" for name, value in zip(names, probabilities, strict=True)}
        rows += of_batch
    return rows


def _truth(labels: Tensor, names: list[str]) -> list[dict[str, str]]:
    """Return the true class or classes of each image; nothing for texts, whose labels are tokens."""
    if not names:
        return [{}] * len(labels)
    if labels.ndim == 1:
        return [{"true_class": names[label]} for label in labels.tolist()]
    shown = [[name for name, is_there in zip(names, row, strict=True) if is_there] for row in labels.tolist()]
    return [{"true_labels": "; ".join(each)} for each in shown]
