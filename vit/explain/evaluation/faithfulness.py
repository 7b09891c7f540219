"""Faithfulness: whether predictions change when the patches that a map marks are removed.

Letters in the einops patterns: b batch, r s grid rows and columns, n patches, k groups of patches, t steps.
"""

from typing import Literal, NamedTuple

import torch
from einops import rearrange, reduce
from torch import Tensor

from vit.capture.parts.logits import logits_of
from vit.explain.classes import check_one_of_several
from vit.explain.evaluation.similarity import without_rounding
from vit.explain.maps import Subject
from vit.explain.maps.fewer_tokens import can_drop, drop_error, logits_with_tokens
from vit.explain.maps.noise import draw_for_each
from vit.support.precision import at_least_float32

STEPS = 10  # of a curve: 0, 10, ..., 90 % of the patches are removed
GROUPS = 10  # groups of patches that SaCo compares

Removal = Literal["token_drop", "mean_fill"]


class Curves(NamedTuple):
    """Predictions while 0, 10, ..., 90 % of the patches are removed, each (B, STEPS)."""

    most_first: Tensor  # probability of the class, the most relevant patches removed first
    least_first: Tensor  # the same, the least relevant first
    kept_by_most_first: Tensor  # 1 if the class is still predicted
    kept_by_least_first: Tensor

    @property
    def area_most_first(self) -> Tensor:
        """Area under the probability, most relevant removed first (Petsiuk et al. 2018): (B,), low is good."""
        return reduce(self.most_first, "b t -> b", "mean")

    @property
    def area_least_first(self) -> Tensor:
        """Area under the probability, least relevant removed first: (B,), high is good.

        The insertion of Petsiuk et al. (2018) instead begins with an empty image and adds the most relevant first.
        """
        return reduce(self.least_first, "b t -> b", "mean")

    @property
    def area_between(self) -> Tensor:
        """Area between the two, (B,): high is good, and random maps get 0 on average."""
        return self.area_least_first - self.area_most_first

    @property
    def positive(self) -> Tensor:
        """Share of steps that keep the class, most relevant removed first (Chefer et al. 2021): (B,), low is good."""
        return reduce(self.kept_by_most_first, "b t -> b", "mean")

    @property
    def negative(self) -> Tensor:
        """Share of steps that keep the class, least relevant removed first: (B,), high is good."""
        return reduce(self.kept_by_least_first, "b t -> b", "mean")


def removal_curves(subject: Subject, maps: Tensor, removal: Removal = "token_drop") -> Curves:
    """Remove patches in the order of maps (B, rows, columns), from the highest down and from the lowest up.

    "token_drop" drops tokens, after their positions are added; "mean_fill" paints patches in the mean colour (0 after
    normalisation). The ranking of methods can differ between the two, so look at both. Patches of equal value are
    removed in a random order.

    Raises:
        ValueError: If the model cannot run with fewer tokens, or gives several labels.
    """
    check_one_of_several(subject.model, subject.logits, "removal")
    values = rearrange(without_rounding(maps), "b r s -> b (r s)")
    order = random_if_equal(values, subject.images).argsort(dim=-1, descending=True)
    if removal == "token_drop" and not can_drop(subject):
        raise drop_error(subject.model)
    remove = _drop if removal == "token_drop" else _fill
    target = subject.contrast.argmax(dim=-1)  # the class of each image whose probability is measured
    halves = []
    for first_to_last in (order, order.flip(-1)):
        probabilities, kept = [], []
        for step in range(STEPS):
            removed = first_to_last[:, : step * order.shape[-1] // STEPS]
            logits = remove(subject, removed) if removed.numel() else subject.logits
            probabilities.append(at_least_float32(logits).softmax(dim=-1).gather(1, target[:, None])[:, 0])
            kept.append((logits.argmax(dim=-1) == target).to(logits))
        halves.append((torch.stack(probabilities, dim=1), torch.stack(kept, dim=1)))
    (most_first, kept_by_most), (least_first, kept_by_least) = halves
    return Curves(most_first, least_first, kept_by_most, kept_by_least)


def saco(subject: Subject, maps: Tensor) -> Tensor:
    """Compute the salience-guided faithfulness coefficient (Wu et al. 2024, algorithm 1): (B, rows, columns) -> (B,).

    Patches are grouped by their value. Each pair of groups adds the difference of their values: positive if painting
    the higher group grey costs more probability, negative if it costs less. The sum is divided by the sum of all
    differences, so it lies from -1 to 1. It depends on the values, not only on their order. Values and costs are per
    patch, because group sizes may differ by one. A constant map gets 0, and so does every map if nothing costs
    anything: equal costs add nothing here, where the paper counts them as agreement.

    Raises:
        ValueError: If the model gives several labels.
    """
    check_one_of_several(subject.model, subject.logits, "removal")
    values = rearrange(without_rounding(maps), "b r s -> b (r s)")
    order = random_if_equal(values, subject.images).argsort(dim=-1, descending=True)
    groups = order.tensor_split(min(GROUPS, order.shape[-1]), dim=-1)
    target = subject.contrast.argmax(dim=-1)[:, None]
    whole = at_least_float32(subject.logits).softmax(dim=-1).gather(1, target)[:, 0]
    left = [at_least_float32(_fill(subject, group)).softmax(dim=-1).gather(1, target)[:, 0] for group in groups]
    costs = torch.stack([(whole - p) / group.shape[-1] for p, group in zip(left, groups, strict=True)], dim=-1)
    heights = torch.stack([values.gather(1, group).mean(dim=-1) for group in groups], dim=-1)
    apart = heights[:, :, None] - heights[:, None]
    agrees = (costs[:, :, None] - costs[:, None]).sign()
    above = torch.ones(len(groups), len(groups), device=maps.device).triu(1).bool()
    signed = reduce((apart * agrees)[:, above], "b k -> b", "sum")
    total = reduce(apart.abs()[:, above], "b k -> b", "sum")
    return torch.where(total > 0, signed / total.clamp(min=torch.finfo(total.dtype).tiny), 0.0)


def gini(maps: Tensor) -> Tensor:
    """Compute the Gini index of maps: (B, rows, columns) -> (B,), 0 for a constant, near 1 for a single patch.

    >>> gini(torch.tensor([[[1.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]]))
    tensor([0.0000, 0.7500])
    """
    values = rearrange(maps, "b r s -> b (r s)").clamp(min=0).sort(dim=-1).values
    n = values.shape[-1]
    weights = 2 * torch.arange(1, n + 1, device=maps.device) - n - 1
    total = values.sum(dim=-1).clamp(min=torch.finfo(values.dtype).tiny)
    return (values * weights).sum(dim=-1) / (n * total)


def random_if_equal(values: Tensor, images: Tensor) -> Tensor:
    """Return the ranks of the values of each row, from 0, with equal values in random order: (B, N) -> (B, N).

    The random order depends on the image (B, C, H, W). One order for all images would be a map itself.
    """
    # The seed differs from that of random maps.
    shuffled = draw_for_each(images, values.shape[1:], 1).argsort(dim=-1)
    ranks = values.gather(1, shuffled).argsort(dim=-1, stable=True).argsort(dim=-1)
    return torch.empty_like(ranks).scatter(1, shuffled, ranks)


@torch.no_grad()
def _fill(subject: Subject, removed: Tensor) -> Tensor:
    return logits_of(subject.model(subject.paint_grey(removed)))


def _drop(subject: Subject, removed: Tensor) -> Tensor:
    anatomy = subject.anatomy
    keep = torch.ones(len(removed), anatomy.num_tokens, dtype=torch.bool, device=removed.device)
    keep.scatter_(1, removed + anatomy.num_prefix_tokens, False)
    kept = rearrange(keep.nonzero()[:, 1], "(b n) -> b n", b=len(removed))
    return logits_with_tokens(subject.model, anatomy, subject.images, kept)
