"""Held-out images and folds: the same share of every class, and no group on both sides."""

import warnings
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.support.checks import check_share

Stage = Literal["train", "val", "test"]
# Fixed for all runs: a model tested under another seed must not be tested on images it was trained on.
SPLIT_SEED = 0
DRAWS = 10  # draws of groups to hold out, of which the best is taken


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


def stratified_split(
    labels: Tensor, fraction: float, keep: int = 1, groups: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the sorted indices of the kept and of the held-out images: (N,) or (N, C) -> (kept,), (held_out,).

    ``fraction`` of each class that ``stratify`` returns, rounded, is held out: at least one image, unless ``fraction``
    is 0, and at most as many as leave ``keep`` images. If images have several labels, each label keeps an image. The
    same labels are always split the same way.

    With the number of the ``groups`` of each image, (N,), whole groups are held out: ``fraction`` of each class as
    nearly as they allow, at least one group and at most as many as leave the class ``keep`` groups.

    >>> labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    >>> kept, held_out = stratified_split(labels, 0.25)
    >>> labels[held_out].sort().values
    tensor([0, 1])

    Raises:
        ValueError: If ``fraction`` is not in [0, 1).
    """
    check_share("the held-out fraction", fraction, "0.1 holds out one image in ten")
    if groups is not None:
        is_held_out = _hold_out_groups(labels, groups, fraction, keep)
        return (~is_held_out).nonzero().squeeze(1), is_held_out.nonzero().squeeze(1)
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


def _hold_out_groups(labels: Tensor, groups: Tensor, fraction: float, keep: int) -> Tensor:
    """Return whether the group of each image is held out, (N,): the best of several draws."""
    group_of_each = groups.unique(return_inverse=True)[1]
    members = F.one_hot(stratify(labels)).double()
    if labels.ndim > 1 and labels.is_floating_point():  # all labels of an image count; having none counts as one
        members = torch.cat([labels.double(), (~labels.any(dim=1, keepdim=True)).double()], dim=1)
    counts = torch.zeros(int(group_of_each.max()) + 1, members.shape[1]).double().index_add_(0, group_of_each, members)
    shares = counts[:, counts.any(dim=0)]
    shares /= shares.sum(dim=0)
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    draws = [_draw_groups(shares, fraction, keep, generator) for _ in range(DRAWS if fraction > 0 else 0)]
    best = min(draws, key=lambda drawn: _excess(shares[drawn].sum(dim=0), fraction), default=torch.zeros(0).long())
    return torch.isin(group_of_each, best)


def _draw_groups(shares: Tensor, fraction: float, keep: int, generator: torch.Generator) -> Tensor:
    """Return the numbers of groups that hold out ``fraction`` of each class, (n,), as nearly as a random order allows.

    Args:
        shares: Share of each class in each group, (G, C).
        fraction: Share of each class to hold out, above 0.
        keep: Fewest groups of a class that are not held out.
        generator: Source of the order.
    """
    drawn, held, groups_left = [], torch.zeros_like(shares[0]), (shares > 0).sum(dim=0)

    def may_go(group: int) -> bool:
        return group not in drawn and bool((groups_left > keep)[shares[group] > 0].all())

    def draw(group: int) -> None:
        drawn.append(group)
        held.add_(shares[group])
        groups_left.sub_((shares[group] > 0).long())

    order = torch.randperm(len(shares), generator=generator).tolist()
    for group in order:
        if _excess(held + shares[group], fraction) < _excess(held, fraction) and may_go(group):
            draw(group)
    for label in range(len(held)):
        if held[label] == 0 and (candidates := [group for group in order if shares[group, label] and may_go(group)]):
            draw(min(candidates, key=lambda group: _excess(held + shares[group], fraction)))
    return torch.tensor(drawn).long()


def _excess(held: Tensor, fraction: float) -> float:
    """Return how far the held-out shares of the classes, (C,), are from ``fraction``."""
    return float((held - fraction).square().sum())


def fold_numbers(labels: Tensor, folds: int, groups: Tensor | None = None) -> Tensor:
    """Return the fold of each image, with the same share of every class in each: (N,) or (N, C) -> (N,).

    Images of one of the ``groups``, (N,), are in one fold, and the shares are as equal as this allows. The same labels
    are always split the same way.

    >>> fold_numbers(torch.tensor([0, 1, 0, 1, 0, 1]), folds=3).bincount()
    tensor([2, 2, 2])

    Raises:
        ValueError: If there are more folds than groups, or than images of the most frequent class.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold  # 1 s that only cross-validation needs

    classes = stratify(labels)
    most = int(classes.bincount().max()) if len(classes) else 0
    if groups is not None and folds > len(groups.unique()):
        raise ValueError(f"folds ({folds}) must be at most the number of groups, {len(groups.unique())}")
    if folds > most:
        raise ValueError(f"folds ({folds}) must be at most the number of images of the most frequent class, {most}")
    kind = StratifiedKFold if groups is None else StratifiedGroupKFold
    numbers = torch.zeros(len(classes), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class")  # it cannot be in every fold
        parts = kind(folds, shuffle=True, random_state=SPLIT_SEED).split(classes, classes, groups)
        for number, (_, tested) in enumerate(parts):
            numbers[torch.from_numpy(tested)] = number
    return numbers
