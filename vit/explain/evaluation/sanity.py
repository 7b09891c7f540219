"""What a map must notice if it is to be an explanation: other weights, another class, attention that is taken away.

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
    """Spearman's correlation of two maps of an image: (B, rows, columns) twice -> (B,), from -1 to 1.

    Equal maps have 1, also where they are constant; a constant map and another one have 0.

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
    model: nn.Module, images: Tensor, methods: Sequence[str], seed: int = 0, **given: Any
) -> dict[str, dict[str, Interval]]:
    """How similar maps stay while the model forgets, from the head down to the first layer (Adebayo et al. 2018).

    A layer is forgotten by shuffling the entries of each of its tensors, which keeps their scale; later layers stay
    forgotten. The target stays what the whole model predicts. A map that stays similar shows the image, not the model.

    Returns:
        For each method, the rank correlation with the map of the whole model by what has been forgotten last: "head",
        then "layer L-1" to "layer 0".

    Raises:
        ValueError: If the model has not one module for each layer.
    """
    subject = Subject(model, images, **given)
    names = subject.anatomy.layer_names
    if not names:
        raise ValueError(f"{type(model).__name__} has no module for each layer, so none can be forgotten by itself")
    target = subject.logits.argmax(dim=-1)
    whole = {method: signed_map(method, subject) for method in methods}
    forgetful = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    stages = [("head", _head_parameters(forgetful, names))]
    for layer in reversed(range(len(names))):
        stages.append(
            (f"layer {layer}", [p for n, p in forgetful.named_parameters() if n.startswith(f"{names[layer]}.")])
        )
    similar: dict[str, dict[str, Interval]] = {method: {} for method in methods}
    for stage, parameters in stages:
        _shuffle(parameters, generator)
        changed = replace(subject, model=forgetful, target=target)
        for method in methods:
            similar[method][stage] = bootstrap(rank_correlation(whole[method], signed_map(method, changed)))
    return similar


def other_class(model: nn.Module, images: Tensor, methods: Sequence[str], **given: Any) -> dict[str, Interval]:
    """Rank correlation of the map for the predicted class with that for the runner-up, for each method.

    1 means that the map is the same whatever class is asked about, so that it cannot say why this one.

    Raises:
        ValueError: If the model has one class only.
    """
    subject = Subject(model, images, **given)
    if subject.logits.shape[1] < 2:
        raise ValueError(f"{type(model).__name__} has one logit only: there is no other class to compare its maps with")
    first, second = subject.logits.topk(2, dim=-1).indices.unbind(dim=-1)
    one, other = (replace(subject, target=target) for target in (first, second))
    return {m: bootstrap(rank_correlation(signed_map(m, one), signed_map(m, other))) for m in methods}


@torch.no_grad()
def uniform_attention(model: nn.Module, images: Tensor, labels: Tensor | None = None) -> Table:
    """What becomes of predictions when attention is the same for all tokens: in one head, one layer, the first layers.

    Where little changes, a map of that attention is no evidence for the prediction.

    Args:
        model: A ViT in eval mode.
        images: Images as it takes them, (B, C, H, W).
        labels: Their classes, (B,), for the change of accuracy.

    Returns:
        A row for each replacement, with ``layers`` and ``heads`` as text, ``flips`` (share of predictions that change),
        ``accuracy_change`` (if labels are given) and ``divergence`` (mean Kullback-Leibler divergence, in nats).
    """
    shapes: list[torch.Size] = []
    plain = run_intercepted(model, images, lambda _, attn: (shapes.append(attn.shape), attn)[1])
    depth = len(shapes)
    rows = []
    for layer, shape in enumerate(shapes):
        rows += [_replaced(model, images, labels, plain, [layer], head) for head in range(shape[1])]
        rows.append(_replaced(model, images, labels, plain, [layer], None))
    rows += [_replaced(model, images, labels, plain, list(range(last + 1)), None) for last in range(1, depth)]
    return Table(rows, note=f"{len(images)} images; layers and heads are counted from 0")


def _replaced(
    model: nn.Module, images: Tensor, labels: Tensor | None, plain: Tensor, layers: list[int], head: int | None
) -> dict[str, Any]:
    def flatten(layer: int, attn: Tensor) -> Tensor:
        if layer not in layers:
            return attn
        even = torch.full_like(attn, 1 / attn.shape[-1])
        if head is None:
            return even
        chosen = torch.arange(attn.shape[1], device=attn.device) == head
        return torch.where(rearrange(chosen, "h -> h 1 1"), even, attn)

    logits = run_intercepted(model, images, flatten)
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
    """Parameters that are listed behind those of the last layer: final norm and head."""
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
    """Ranks of each row less their mean, equal values with the mean of their ranks: (B, N) -> (B, N)."""
    below = (values[:, :, None] > values[:, None]).sum(dim=-1)
    equal = (values[:, :, None] == values[:, None]).sum(dim=-1)
    ranks = below + (equal - 1) / 2
    return ranks - reduce(ranks, "b n -> b 1", "mean")
