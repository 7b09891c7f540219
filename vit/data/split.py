"""Held-out images: the same share of every class.

Letters in the shapes: N images, C classes.
"""

import torch
from torch import Tensor

from vit.support.checks import check_share

# Fixed for all runs: a model tested under another seed must not be tested on images it was trained on.
SPLIT_SEED = 0


def number_strata(labels: Tensor) -> Tensor:
    """Return the class of each image that its share of images is counted by: (N,) or rows of labels (N, C) -> (N,).

    Of several labels it is the rarest one; images without a label have the number C.

    >>> number_strata(torch.tensor([[1.0, 1], [1, 0], [1, 0], [0, 0]]))
    tensor([1, 0, 0, 2])
    """
    if labels.ndim == 1:
        return labels
    counts = labels.sum(dim=0)
    rarest = torch.where(labels > 0, counts, torch.inf).argmin(dim=1)
    return torch.where((labels > 0).any(dim=1), rarest, labels.shape[1])


def stratified_split(labels: Tensor, fraction: float, keep: int = 1) -> tuple[Tensor, Tensor]:
    """Return the sorted indices of the kept and of the held-out images: (N,) or (N, C) -> (kept,), (held_out,).

    ``fraction`` of each class, rounded, is held out: at least one image, unless ``fraction`` is 0, and at most as many
    as leave ``keep`` images. The same labels are always split the same way.

    >>> labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    >>> kept, held_out = stratified_split(labels, 0.25)
    >>> labels[held_out].sort().values
    tensor([0, 1])

    Raises:
        ValueError: If ``fraction`` is not in [0, 1).
    """
    check_share("the held-out fraction", fraction, "0.1 holds out one image in ten")
    labels, fewest = number_strata(labels), 1 if fraction > 0 else 0
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        shuffled = members[torch.randperm(len(members), generator=generator)]
        count = min(max(fewest, round(fraction * len(members))), max(0, len(members) - keep))
        held_out[shuffled[:count]] = True
    return (~held_out).nonzero().squeeze(1), held_out.nonzero().squeeze(1)
