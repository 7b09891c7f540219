"""Sanity checks: maps must change with the class, and predictions must change without attention.

Passing is necessary but not sufficient: a map of noise passes the first check (Binder et al. 2023).

Letters in the einops patterns: h heads.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.capture.attention import influential_calls, run_intercepted
from vit.capture.checks.steady import check_steady
from vit.explain.classes import check_one_of_several
from vit.explain.evaluation.confidence import check_labels
from vit.explain.evaluation.printed_table import Table
from vit.explain.evaluation.similarity import map_correlation
from vit.explain.maps import Subject, signed_map
from vit.explain.maps.noise import draw_for_each
from vit.support.precision import at_least_float32, in_double

Replacement = Callable[[int, Tensor], Tensor]  # index of a layer and its attention (B, H, N, M) -> other attention


def other_class(subject: Subject, methods: Sequence[str]) -> dict[str, Tensor]:
    """Compute the rank correlation of each image's map for the predicted class with that for the runner-up.

    1 means that both maps order the patches alike, so they do not explain the choice between the classes. NaN means
    that both maps are constant.

    Returns:
        For each method, a number for each image, (B,).

    Raises:
        ValueError: If the model has one class only.
    """
    if subject.logits.shape[1] < 2:
        name = type(subject.model).__name__
        raise ValueError(
            f"{name} has one logit only, so there is no other class to compare its maps with: leave this check out"
        )
    first, second = subject.logits.topk(2, dim=-1).indices.unbind(dim=-1)
    one, other = (replace(subject, target=target) for target in (first, second))
    return {m: map_correlation(signed_map(m, one), signed_map(m, other)) for m in methods}


def uniform_attention(model: nn.Module, images: Tensor, labels: Tensor | None = None) -> Table:
    """Measure how predictions change when attention is uniform: in one head, one layer, or the first layers jointly.

    If little changes when all layers are uniform, a map of attention is no evidence for the prediction. If one layer is
    not needed, this says less: other layers may do its work.

    Returns:
        A row for each replacement, with ``layers`` and ``heads`` as text, ``flips`` (share of predictions that change),
        ``accuracy_change`` (if labels are given) and ``divergence`` (mean Kullback-Leibler divergence, in nats).
    """
    return _table_of_replacements(model, images, labels, uniform)


def permuted_attention(model: nn.Module, images: Tensor, labels: Tensor | None = None, seed: int = 0) -> Table:
    """Measure how predictions change when each token attends to other tokens with the same weights, shuffled.

    The weights of each query and head are shuffled among the keys (Jain and Wallace 2019), once for each image. Weights
    of exactly zero, such as those of masked keys, stay zero. The rows are those of ``uniform_attention``.
    """
    return _table_of_replacements(model, images, labels, permuted(images, seed))


def uniform(layer: int, attn: Tensor) -> Tensor:
    """Return attention that is equal for all keys: (B, H, N, M) -> (B, H, N, M)."""
    return torch.full_like(attn, 1 / attn.shape[-1])


def permuted(images: Tensor, seed: int = 0) -> Replacement:
    """Return the replacement that shuffles each row of attention among the keys whose weight is not zero."""

    def shuffle(layer: int, attn: Tensor) -> Tensor:
        places = draw_for_each(images, attn.shape[1:], seed, layer)
        masked = attn == 0
        in_order = masked.byte().argsort(dim=-1, stable=True)
        shuffled = places.masked_fill(masked, 2.0).argsort(dim=-1)  # the masked keys last, as in in_order
        return torch.zeros_like(attn).scatter(-1, shuffled, attn.gather(-1, in_order))

    return shuffle


@torch.no_grad()
def replaced_logits(
    model: nn.Module,
    images: Tensor,
    replacement: Replacement,
    layers: Sequence[int],
    calls: Sequence[int],
    head: int | None = None,
) -> Tensor:
    """Return the logits with the attention of these layers replaced, in one head or in all (None): -> (B, classes).

    ``calls`` holds the indices of the attention calls that count as layers.
    """

    def edit(layer: int, attn: Tensor) -> Tensor:
        if layer not in layers:
            return attn
        other = replacement(layer, attn)
        if head is None:
            return other
        chosen = torch.arange(attn.shape[1], device=attn.device) == head
        return torch.where(rearrange(chosen, "h -> h 1 1"), other, attn)

    return run_intercepted(model, images, edit, calls)


@torch.no_grad()
def _table_of_replacements(model: nn.Module, images: Tensor, labels: Tensor | None, replacement: Replacement) -> Table:
    num_heads: list[int] = []

    def count_heads(_: int, attn: Tensor) -> Tensor:
        num_heads.append(attn.shape[1])
        return attn

    labels = check_labels(labels, images)
    check_steady(model, images)
    calls = influential_calls(model, images[:1])
    plain = run_intercepted(model, images, count_heads, calls)
    check_one_of_several(model, plain, "the change of predictions")
    which = [([layer], head) for layer, heads in enumerate(num_heads) for head in (*range(heads), None)]
    which += [(range(last + 1), None) for last in range(1, len(num_heads))]
    rows = [
        {
            "layers": str(layers[0]) if len(layers) == 1 else f"{layers[0]} to {layers[-1]}",
            "heads": "all" if head is None else str(head),
            **_change(plain, replaced_logits(model, images, replacement, layers, calls, head), labels),
        }
        for layers, head in which
    ]
    return Table(rows, note=f"{len(images)} images; layers and heads are counted from 0")


def _change(plain: Tensor, logits: Tensor, labels: Tensor | None) -> dict[str, Any]:
    """Return how far logits are from those of the unchanged model."""
    before, after = (at_least_float32(each).log_softmax(dim=-1) for each in (plain, logits))
    change = {
        "flips": in_double(logits.argmax(dim=-1) != plain.argmax(dim=-1)).mean().item(),
        "divergence": (before.exp() * (before - after)).sum(dim=-1).mean().item(),
    }
    if labels is not None:
        right, was_right = (x.argmax(dim=-1) == labels.to(x.device) for x in (logits, plain))
        change["accuracy_change"] = (in_double(right) - in_double(was_right)).mean().item()
    return change
