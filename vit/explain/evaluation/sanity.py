"""Sanity checks: an explanation changes with the weights and the class, and predictions change without attention.

To pass is necessary and not sufficient: a map of noise passes the first two (Binder et al. 2023).

Letters in the einops patterns: b batch, r s grid rows and columns, n patches.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from einops import rearrange, reduce
from torch import Tensor, nn

from vit.capture.attention import run_intercepted
from vit.explain.evaluation.table import Interval, Table, bootstrap
from vit.explain.maps import Subject, signed_map


def rank_correlation(maps: Tensor, others: Tensor) -> Tensor:
    """Compute Spearman's correlation of two maps of each image: (B, rows, columns) twice -> (B,), from -1 to 1.

    Equal maps have 1, even if they are constant; a constant map and another one have 0.

    >>> rising = torch.tensor([[[0.0, 1.0], [2.0, 3.0]]])
    >>> rank_correlation(rising, rising.exp()).item(), rank_correlation(rising, -rising).item()
    (1.0, -1.0)
    """
    ranks, other_ranks = (_centred_ranks(rearrange(x, "b r s -> b (r s)")) for x in (maps, others))
    product = reduce(ranks * other_ranks, "b n -> b", "sum")
    norms = (reduce(ranks**2, "b n -> b", "sum") * reduce(other_ranks**2, "b n -> b", "sum")).sqrt()
    correlation = torch.where(norms > 0, product / norms.clamp(min=1e-12), 0.0)
    equal = reduce((maps == others).to(correlation), "b r s -> b", "min") == 1
    return torch.where(equal, 1.0, correlation)


def randomised_layers(
    model: nn.Module,
    images: Tensor,
    methods: Sequence[str],
    seed: int = 0,
    *,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
) -> dict[str, dict[str, Interval]]:
    """Compare maps while layers are randomised, from the head down to the first layer (Adebayo et al. 2018).

    A layer is randomised by shuffling the entries of each of its tensors, which keeps their scale; later layers stay
    randomised. The target stays the class that the trained model predicts. A map that stays similar depends on the
    image, not on the model. The arguments are those of ``trust_report``, and the seed of the shuffling.

    Returns:
        For each method, the rank correlation with the map of the trained model by the part randomised last: "head",
        then "layer L-1" to "layer 0".

    Raises:
        ValueError: If the layers share one module.
    """
    subject = Subject(model, images, grid=grid, num_prefix_tokens=num_prefix_tokens)
    names = subject.anatomy.parts.layer_names
    if not names:
        raise ValueError(f"{type(model).__name__} has no module for each layer, so none can be randomised by itself")
    target = subject.logits.argmax(dim=-1)
    trained = {method: signed_map(method, subject) for method in methods}
    randomised = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    stages = {"head": _head_parameters(randomised, names)}
    for layer, name in reversed(list(enumerate(names))):
        stages[f"layer {layer}"] = [p for n, p in randomised.named_parameters() if n.startswith(f"{name}.")]
    similar: dict[str, dict[str, Interval]] = {method: {} for method in methods}
    for stage, parameters in stages.items():
        _shuffle(parameters, generator)
        changed = replace(subject, model=randomised, target=target)
        for method in methods:
            similar[method][stage] = bootstrap(rank_correlation(trained[method], signed_map(method, changed)))
    return similar


def other_class(
    model: nn.Module,
    images: Tensor,
    methods: Sequence[str],
    *,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
) -> dict[str, Interval]:
    """Compute the rank correlation of the map for the predicted class with that for the runner-up, for each method.

    1 means that the map is the same for both classes, so it does not explain the choice between them. The arguments
    are those of ``trust_report``.

    Raises:
        ValueError: If the model has one class only.
    """
    subject = Subject(model, images, grid=grid, num_prefix_tokens=num_prefix_tokens)
    if subject.logits.shape[1] < 2:
        raise ValueError(f"{type(model).__name__} has one logit only: there is no other class to compare its maps with")
    first, second = subject.logits.topk(2, dim=-1).indices.unbind(dim=-1)
    one, other = (replace(subject, target=target) for target in (first, second))
    return {m: bootstrap(rank_correlation(signed_map(m, one), signed_map(m, other))) for m in methods}


@torch.no_grad()
def uniform_attention(model: nn.Module, images: Tensor, labels: Tensor | None = None) -> Table:
    """Measure how predictions change when attention is uniform: in one head, one layer, or the first layers.

    If little changes, a map of that attention is no evidence for the prediction.

    Returns:
        A row for each replacement, with ``layers`` and ``heads`` as text, ``flips`` (share of predictions that change),
        ``accuracy_change`` (if labels are given) and ``divergence`` (mean Kullback-Leibler divergence, in nats).
    """
    num_heads: list[int] = []

    def count_heads(_: int, attn: Tensor) -> Tensor:
        num_heads.append(attn.shape[1])
        return attn

    plain = run_intercepted(model, images, count_heads)
    rows = []
    for layer, heads in enumerate(num_heads):
        rows += [_replaced(model, images, labels, plain, [layer], head) for head in (*range(heads), None)]
    rows += [_replaced(model, images, labels, plain, range(last + 1), None) for last in range(1, len(num_heads))]
    return Table(rows, note=f"{len(images)} images; layers and heads are counted from 0")


def _replaced(
    model: nn.Module, images: Tensor, labels: Tensor | None, plain: Tensor, layers: Sequence[int], head: int | None
) -> dict[str, Any]:
    """Return the row of one replacement: one head or all heads (None) of these layers."""

    def make_uniform(layer: int, attn: Tensor) -> Tensor:
        if layer not in layers:
            return attn
        uniform = torch.full_like(attn, 1 / attn.shape[-1])
        if head is None:
            return uniform
        chosen = torch.arange(attn.shape[1], device=attn.device) == head
        return torch.where(rearrange(chosen, "h -> h 1 1"), uniform, attn)

    logits = run_intercepted(model, images, make_uniform)
    before, after = plain.log_softmax(dim=-1), logits.log_softmax(dim=-1)
    row = {
        "layers": str(layers[0]) if len(layers) == 1 else f"{layers[0]} to {layers[-1]}",
        "heads": "all" if head is None else str(head),
        "flips": (logits.argmax(dim=-1) != plain.argmax(dim=-1)).double().mean().item(),
        "divergence": (before.exp() * (before - after)).sum(dim=-1).mean().item(),
    }
    if labels is not None:
        right, was_right = (x.argmax(dim=-1) == labels for x in (logits, plain))
        row["accuracy_change"] = (right.double() - was_right.double()).mean().item()
    return row


def _head_parameters(model: nn.Module, layer_names: list[str]) -> list[nn.Parameter]:
    """Return the parameters listed after those of the last layer: final norm and head."""
    named = list(model.named_parameters())
    last = max(i for i, (name, _) in enumerate(named) if name.startswith(f"{layer_names[-1]}."))
    return [parameter for _, parameter in named[last + 1 :]]


@torch.no_grad()
def _shuffle(parameters: list[nn.Parameter], generator: torch.Generator) -> None:
    for parameter in parameters:
        flat = parameter.flatten()
        order = torch.randperm(len(flat), generator=generator).to(flat.device)
        parameter.copy_(flat[order].view_as(parameter))


def _centred_ranks(values: Tensor) -> Tensor:
    """Return the ranks of each row less their mean; equal values share their mean rank: (B, N) -> (B, N)."""
    below = (values[:, :, None] > values[:, None]).sum(dim=-1)
    equal = (values[:, :, None] == values[:, None]).sum(dim=-1)
    ranks = below + (equal - 1) / 2
    return ranks - reduce(ranks, "b n -> b 1", "mean")
