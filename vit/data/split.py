"""Held-out images: the same share of every class."""

import torch
from torch import Tensor

# Fixed for all runs: a model tested under another seed must not be tested on images it was trained on.
SPLIT_SEED = 0


def stratified_split(labels: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
    """Return the sorted indices of the kept and of the held-out images: labels (N,) -> (kept,), (held_out,).

    ``fraction`` of each class, rounded, is held out. The same labels are always split the same way.

    >>> labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    >>> kept, held_out = stratified_split(labels, 0.25)
    >>> labels[held_out].sort().values
    tensor([0, 1])

    Raises:
        ValueError: If ``fraction`` is not in [0, 1).
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"the held-out fraction ({fraction}) must be in [0, 1): 0.1 holds out one image in ten")
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        shuffled = members[torch.randperm(len(members), generator=generator)]
        held_out[shuffled[: round(fraction * len(members))]] = True
    return (~held_out).nonzero().squeeze(1), held_out.nonzero().squeeze(1)
