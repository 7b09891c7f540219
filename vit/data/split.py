"""Holding images out of a set, the same share of every class."""

import torch
from torch import Tensor

# One for all runs: a model that is tested under another seed must not meet images it was trained on.
SPLIT_SEED = 0


def stratified_split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of the images that stay and of those held out: (N,) -> (kept,), (held out,).

    ``fraction`` of each class is held out, rounded, drawn by ``seed``; both parts are sorted.

    Raises:
        ValueError: If ``fraction`` is not in [0, 1).

    >>> labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    >>> kept, held_out = stratified_split(labels, 0.25, seed=0)
    >>> labels[held_out].sort().values
    tensor([0, 1])
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"the held-out fraction ({fraction}) must be in [0, 1): 0.1 holds out one image in ten")
    generator = torch.Generator().manual_seed(seed)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        shuffled = members[torch.randperm(len(members), generator=generator)]
        held_out[shuffled[: round(fraction * len(members))]] = True
    return (~held_out).nonzero().squeeze(1), held_out.nonzero().squeeze(1)
