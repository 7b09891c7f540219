"""Held-out images: the same share of every class."""

import torch
from torch import Tensor

from vit.support.checks import check_share

# Fixed for all runs: a model tested under another seed must not be tested on images it was trained on.
SPLIT_SEED = 0


def stratify(labels: Tensor) -> Tensor:
    """Return the one class by which each image is split and drawn: (N,) or (N, C) -> (N,).

    Class numbers stay as they are. Several labels, as rows of 0. and 1., become the rarest label of the image, or C if
    there is none. Rows of tokens, which are whole numbers, all become class 0.

    >>> stratify(torch.tensor([[1.0, 1, 0], [1, 0, 0], [0, 0, 0]]))
    tensor([1, 0, 3])
    """
    if labels.ndim == 1:
        return labels
    if not labels.is_floating_point():
        return torch.zeros(len(labels), dtype=torch.long)
    counts = labels.sum(dim=0).expand_as(labels).where(labels > 0, torch.inf)
    return counts.argmin(dim=1).where(labels.any(dim=1), labels.shape[1])


def stratified_split(labels: Tensor, fraction: float, keep: int = 1) -> tuple[Tensor, Tensor]:
    """Return the sorted indices of the kept and of the held-out images: (N,) or (N, C) -> (kept,), (held_out,).

    ``fraction`` of each class that ``stratify`` returns, rounded, is held out: at least one image, unless ``fraction``
    is 0, and at most as many as leave ``keep`` images. If images have several labels, each label keeps an image. The
    same labels are always split the same way.

    >>> labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    >>> kept, held_out = stratified_split(labels, 0.25)
    >>> labels[held_out].sort().values
    tensor([0, 1])

    Raises:
        ValueError: If ``fraction`` is not in [0, 1).
    """
    check_share("the held-out fraction", fraction, "0.1 holds out one image in ten")
    fewest = 1 if fraction > 0 else 0
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    classes = stratify(labels)
    for label in classes.unique():
        members = (classes == label).nonzero().squeeze(1)
        shuffled = members[torch.randperm(len(members), generator=generator)]
        count = min(max(fewest, round(fraction * len(members))), max(0, len(members) - keep))
        held_out[shuffled[:count]] = True
    if labels.ndim > 1 and labels.is_floating_point():
        for members in labels.T > 0:
            if not (members & ~held_out).any():
                held_out[members.nonzero()[:1]] = False
    return (~held_out).nonzero().squeeze(1), held_out.nonzero().squeeze(1)
