"""Finds which attentions and logits depend on which attention: by the autograd graph, and by experiment where it ends.

Values flow on after ``detach()`` and under ``no_grad()``, where the graph ends. A batch of copies then shows what an
attention moves: in each copy, another attention is replaced by random weights.

Letters in the einops patterns: k copies of an image, c image channels, y x rows and columns of pixels.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from einops import repeat
from torch import Tensor, nn
from torch.autograd.graph import Node

from vit.capture.experiments.graph import attentions_behind
from vit.capture.experiments.moved import changes, rounding
from vit.capture.interception.head_order import intercept
from vit.capture.parts.logits import result_of
from vit.capture.remedy import CHOOSE_OTHERS
from vit.support.precision import in_double

LOGITS = -1  # in the place of the number of a call
COPIES_AT_ONCE = 16


class Made(NamedTuple):
    """The nodes of the autograd graph that made an attention; None if there is no graph."""

    weights: Node | None
    values: Node | None


class Dependents(NamedTuple):
    """What depends on each attention call: later calls, by their numbers, and ``LOGITS``."""

    reached: Sequence[set[int]]
    by_values: Sequence[set[int]]  # those whose values depend on it, and not only their queries and keys


def find_dependents(model: nn.Module, image: Tensor, logits: Tensor, made: Sequence[Made]) -> Dependents:
    """Return for each attention call the later calls, and ``LOGITS``, that depend on it.

    Args:
        model: A ViT in eval mode.
        image: One image as the model takes it, (1, C, H, W).
        logits: The logits of a pass.
        made: What made each attention in this pass.
    """
    reached, by_values = ([set() for _ in made] for _ in range(2))
    attentions = [each.weights for each in made]
    targets = [(LOGITS, logits.grad_fn, logits.grad_fn), *((call, *each) for call, each in enumerate(made))]
    for target, weights, values in targets:
        for call in attentions_behind(values, attentions):
            by_values[call].add(target)
        for call in attentions_behind(weights, attentions):
            reached[call].add(target)
    following = [*range(1, len(made)), LOGITS]
    unlinked = [call for call in range(len(made)) if not {LOGITS, following[call]} <= reached[call] & by_values[call]]
    for start in range(0, len(unlinked), COPIES_AT_ONCE):
        some = unlinked[start : start + COPIES_AT_ONCE]
        for call, moved in zip(some, _moved_by(model, image, some), strict=True):
            by_values[call] |= moved
    return Dependents([one | other for one, other in zip(reached, by_values, strict=True)], by_values)


def influential(dependents: Dependents) -> list[int]:
    """Return the calls that influence the logits, themselves or through later calls that do."""
    found: list[int] = []
    for call, reached in reversed([*enumerate(dependents.reached)]):
        if LOGITS in reached or reached & set(found):
            found.append(call)
    return found[::-1]


def check_in_a_row(model: nn.Module, calls: Sequence[int], dependents: Dependents) -> None:
    """Raise a ValueError if a call does not mix what the one before it made: their maps do not multiply."""
    for call, following in pairwise(calls):
        if following not in dependents.reached[call]:
            raise ValueError(
                f"{type(model).__name__} has attentions side by side (number {following} does not depend on number "
                f"{call}), as in parallel branches, a model that runs twice or a loop over heads, which would be taken "
                f"for layers in a row: {CHOOSE_OTHERS}"
            )
        if following not in dependents.by_values[call]:
            raise ValueError(
                f"{type(model).__name__} has attention to other tokens than those of the layer before (the values of "
                f"number {following} do not depend on number {call}), as to those of an earlier layer, of another view "
                f"or of a memory, which would be taken for layers in a row: {CHOOSE_OTHERS}"
            )


@torch.no_grad()
def _moved_by(model: nn.Module, image: Tensor, calls: Sequence[int]) -> list[set[int]]:
    """Return which calls, and ``LOGITS``, each of these calls moves if its weights become random."""
    moved: list[set[int]] = [set() for _ in calls]
    generator = torch.Generator().manual_seed(0)

    def record(target: int, tensor: Tensor) -> None:
        flat = changes(in_double(tensor.detach())).flatten(1).amax(dim=1)
        for reached, change in zip(moved, flat[:-1] > rounding(tensor), strict=True):
            if change:
                reached.add(target)

    def randomise(call: int, attn: Tensor) -> Tensor:
        intercepted.check_all_images(call, attn)
        record(call, intercepted.values)
        if call not in calls:
            return attn
        random = torch.rand(attn.shape[1:], generator=generator).to(attn)
        copy = torch.arange(len(attn), device=attn.device) == calls.index(call) + 1
        return torch.where(copy[:, None, None, None], random / random.sum(dim=-1, keepdim=True), attn)

    copies = repeat(image, "1 c y x -> k c y x", k=len(calls) + 2)  # the first and the last stay as they are
    intercepted = intercept(model, copies, randomise)
    with intercepted:
        logits = result_of(model(copies))
    record(LOGITS, logits)
    return moved
