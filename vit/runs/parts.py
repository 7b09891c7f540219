"""A part of the validation or test images: chosen once, evenly over all classes, and the same for every run."""

import math

import torch
from lightning import Trainer
from torch import Tensor

from vit.data.split import stratify
from vit.runs.splits import is_users_own

SEED = 0


def draw_parts(trainer: Trainer) -> dict[str, dict[str, int]]:
    """Apply ``limit_val_batches`` and ``limit_test_batches`` by drawing that many images evenly over the classes.

    Lightning would take the first images, which in many data sets are of the first classes. A second call does nothing,
    as no limit is left.

    Returns:
        For "val" and "test" the number of ``images`` that are drawn, and the number that they are drawn ``of``. Splits
        that stay whole are missing.
    """
    data, parts = trainer.datamodule, {}
    if is_users_own(data):  # Lightning stops the user's own loaders after their first batches
        return parts
    for split in ("val", "test"):
        limit = getattr(trainer, f"limit_{split}_batches")
        if split not in data.sets or limit == 0 or trainer.fast_dev_run:
            continue
        total = len(data.sets[split].labels)
        batch = data.batch_size * trainer.world_size
        count = limit * batch if isinstance(limit, int) else math.ceil(limit * total)
        if count < total:
            data.sets[split] = data.sets[split].numbered().subset(even_part(data.sets[split].labels, count))
            setattr(trainer, f"limit_{split}_batches", 1.0)
            parts[split] = {"images": count, "of": total}
    return parts


def even_part(labels: Tensor, count: int) -> Tensor:
    """Return the sorted indices of ``count`` images, about the same share of each class: (N,) or (N, C) -> (count,).

    >>> labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    >>> labels[even_part(labels, 4)]
    tensor([0, 0, 1, 1])
    """
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    by_class = shuffled[stratify(labels)[shuffled].argsort(stable=True)]
    places = ((torch.arange(count) + 0.5) * len(labels) / count).long()
    return by_class[places].sort().values


def part_in_words(part: dict[str, int], split: str) -> str:
    """Describe a part in words.

    >>> part_in_words({"images": 200, "of": 10_000}, "test")
    '200 of 10,000 test images'
    """
    return f"{part['images']:,} of {part['of']:,} {'validation' if split == 'val' else split} images"
